"""The command itself, with real workers: hostile ones cost themselves only, orphans end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from batch_cases import book, contents

from grader.upkeep.patching import ROOT

LEAVES = "import os\nos._exit(0)\n"


def handed_in(root: Path, **edits: str | None) -> Path:
    """Write a class: the solution with another attention.py, or the starter where that is None."""
    for name, text in edits.items():
        tree = "starter" if text is None else "solution"
        shutil.copytree(ROOT / tree / "transformer", root / name / "transformer")
        if text:
            (root / name / "transformer/attention.py").write_text(text)
    return root


def batch(source: Path, out: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "grader", "batch", str(source), "--out", str(out), *words]


def results(out: Path) -> dict[str, bytes]:
    return contents(out, lambda name: not name.startswith((".", "timings.csv")))


def started_in(folder: str) -> list[psutil.Process]:
    """Return the processes whose temporary folder is `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.environ() | {"words": " ".join(process.cmdline())}
        except (psutil.Error, OSError):
            continue
        if any(folder in value for value in words.values()):
            found.append(process)
    return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_command_grades_a_class(tmp_path):
    source = handed_in(tmp_path / "class", anna=None)
    (source / "torn.zip").write_bytes(b"PK\x03\x04 torn")
    done = subprocess.run(
        batch(source, tmp_path / "out", "--jobs", "2"), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert [row["status"] for row in book(tmp_path / "out")] == ["not_passed", "ungradable"]
    assert "2/2 anna: not_passed, 0 of 100; " in done.stderr and "a minute" in done.stderr
    assert "2 in the class: 1 not_passed, 1 ungradable" in done.stdout
    found = json.loads((tmp_path / "out/students/anna/results.json").read_bytes())
    assert found["complete"] and found["isolation"]["contained"]


def test_replay_of_a_class_in_a_zip_unpacks_it_and_grades_the_same(tmp_path):
    shutil.make_archive(str(tmp_path / "class"), "zip", handed_in(tmp_path / "class", anna=None))
    bin_first = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    where = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(ROOT), "PATH": bin_first}}
    subprocess.run(batch(Path("class.zip"), Path("out"), "--quiet"), **where, check=False)
    found = json.loads((tmp_path / "out/students/anna/results.json").read_bytes())
    done = subprocess.run(f"{found['replay']} --out again", **where, shell=True, check=False)
    again = json.loads((tmp_path / "again/results.json").read_bytes())
    assert done.returncode == 1 and again["seed"] == found["seed"]
    assert again["submission"]["sha256"] == found["submission"]["sha256"]


@pytest.mark.slow
def test_two_processes_write_the_bytes_of_one(tmp_path):
    source = handed_in(tmp_path / "class", anna=None, ben=LEAVES, carl="")
    for jobs in ("1", "2"):
        words = batch(source, tmp_path / jobs, "--jobs", jobs, "--quiet")
        assert subprocess.run(words, cwd=ROOT, capture_output=True).returncode == 0
    assert [row["score"] for row in book(tmp_path / "1")] == ["0", "14", "100"]
    assert results(tmp_path / "1") == results(tmp_path / "2")


@pytest.mark.slow
@pytest.mark.parametrize("side", ["batch", "worker"])
def test_nothing_outlives_a_side_that_was_killed(tmp_path, side):
    source, out = handed_in(tmp_path / "class", anna="", ben=None), tmp_path / "out"
    process = subprocess.Popen(
        batch(source, out, "--jobs", "1"), cwd=ROOT, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    note, workers = out / ".temporary-whole", list[psutil.Process]()
    while not workers or not list(Path(note.read_text().strip()).glob("grader-*/trees/*/*")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
        workers = [p for p in psutil.Process(process.pid).children() if note.exists()]
    temporary = note.read_text().strip()
    if side == "batch":
        process.kill()
        process.wait()
        while started_in(temporary):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        again = subprocess.run(batch(source, out, "--quiet"), cwd=ROOT, capture_output=True)
        assert again.returncode == 0
    else:
        os.kill(workers[0].pid, signal.SIGKILL)
        assert process.wait() == 0
    assert [row["score"] for row in book(out)] == ["100", "0"]
    assert not Path(temporary).exists() and not started_in(temporary)
