"""A disk that is really full: one sentence, nothing lost, and the same command goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
BEGIN = f"""
import contextlib, io, json, os, subprocess, sys, tempfile
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]
from pathlib import Path
from types import SimpleNamespace
from batch_cases import Stub, contents, run, small_class
from class_cases import packed
from grader.classroom import command

# What isolates in such a namespace is not asked here.
command.chosen_isolation = lambda requested: SimpleNamespace(contained=True)

base, size = Path(sys.argv[1]), sys.argv[2]
disk, out = base / "disk", base / "disk/out"
disk.mkdir()

def mount(*options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", disk], check=True)

def graded(source, out):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code, engine = run(source, out, engine=Stub(1))
    return dict(code=code, asked=len(engine.asked), said=said.getvalue())
"""
OUTPUT = """
masks = {f"s{i:02}": ("wrong", "right")[i % 2] + str(i) for i in range(30)}
source = small_class(base / "class", **masks)
graded(source, base / "whole")
mount(f"size={size}")
first = graded(source, out)
files = contents(out)
for name, content in files.items():
    if name.endswith((".json", ".jsonl")):
        [json.loads(line) for line in content.decode().splitlines() if name.endswith("l")]
        name.endswith("l") or json.loads(content)
kept = [name for name in files if name.startswith("store/")]
second = graded(source, out)
mount("remount", "size=64m")
third = graded(source, out)
def results(folder):
    return contents(folder, lambda n: not n.startswith((".", "timings.csv")))
print(json.dumps(dict(first=first, second=second, third=third, kept=len(kept),
      unfinished=[n for n in files if ".writing-" in n],
      equal=results(out) == results(base / "whole"))))
"""
TEMPORARY = """
files = {}
for name in ("anna", "ben"):
    files |= {f"{name}/transformer/masks.py": name.encode(), f"{name}/x.bin": bytes(200_000)}
(base / "class.zip").write_bytes(packed(files))
mount(f"size={size}")
tempfile.tempdir = str(disk)
print(json.dumps(graded(base / "class.zip", base / "out")))
"""
GRADING = """
mount(f"size={size}")
command = [sys.executable, "-m", "grader", "grade", "starter", "--quiet", "--out", str(out)]
command += ["--isolation", "portable"]
done = subprocess.run(command, cwd=sys.path[1], capture_output=True, text=True)
print(json.dumps(dict(code=done.returncode, said=done.stderr,
      complete=json.loads((out / "results.json").read_text())["complete"])))
"""


def on_small_disk(script: str, base: Path, size: str) -> dict[str, Any]:
    """Run a script that may mount a file system of its own, and return what it prints."""
    if not shutil.which("unshare"):
        pytest.skip("no unshare here: no small file system can be made")
    (base / "try").mkdir()
    trial = [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", str(base / "try")]
    if subprocess.run(trial, capture_output=True).returncode:
        pytest.skip("no mount in a namespace of one's own: no small file system can be made")
    words = [*NAMESPACE, sys.executable, "-c", BEGIN + script, str(base), size]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("size", ["4k", "16k", "300k", "500k", "760k"])
def test_full_output_disk_is_named_and_nothing_is_lost(tmp_path, size):
    found = on_small_disk(OUTPUT, tmp_path, size)
    first, second, third = found["first"], found["second"], found["third"]
    assert first["code"] == second["code"] == 2
    for each in (first, second):
        assert "cannot be written (No space left on device)" in each["said"]
        assert "make room and give the same command again" in each["said"]
        assert each["said"].count("\n") == 1
    assert found["unfinished"] == []
    # One at a time is at work, and one waits.
    assert first["asked"] - found["kept"] <= 2
    assert third["code"] == 0 and third["said"] == ""
    assert third["asked"] + second["asked"] <= 30 - found["kept"] + 2 and found["equal"]


def test_large_submissions_need_no_room_on_the_temporary_disk(tmp_path):
    found = on_small_disk(TEMPORARY, tmp_path, "64k")
    assert found == {"code": 0, "asked": 2, "said": ""}


def test_grade_says_in_one_sentence_that_the_disk_is_full(tmp_path: Path) -> None:
    found = on_small_disk(GRADING, tmp_path, "16k")
    assert found["code"] == 2 and not found["complete"]
    assert found["said"].count("\n") == 1 and "No space left on device" in found["said"]
