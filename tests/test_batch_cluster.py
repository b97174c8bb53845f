"""On a cluster the class is the same, though a worker dies in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from batch_cases import contents, run, small_class

from grader import __main__ as command_line
from grader.classroom import cluster, command

pytest.importorskip("distributed", reason="no Dask here: pip install '.[cluster]'")
HERE = Path(__file__).resolve().parent
CLASS = {f"s{i:02}": ("right", "wrong")[i % 2] + str(i) for i in range(16)}
# What a Dask worker starts to grade: the stand-in, in a process of its own.
WORKER = """
import json, os, sys, time
sys.path[:0] = [{tests!r}, {root!r}]
from batch_cases import Stub
stub = Stub(1)
with open(os.path.join({notes!r}, str(os.getppid())), "w"):
    pass
for line in sys.stdin:
    time.sleep(0.25)
    sys.stdout.write(stub._grade(json.loads(line)).decode() + "\\n")
    sys.stdout.flush()
"""


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    """Start a scheduler and two workers on loopback; yield the address."""
    notes = tmp_path / "notes"
    notes.mkdir()
    code = WORKER.format(tests=str(HERE), root=str(HERE.parent), notes=str(notes))
    command = (sys.executable, "-c", code)
    setup = f"from grader.classroom import cluster\ncluster.COMMAND = {command!r}\n"
    (tmp_path / "stand_in.py").write_text(setup)
    environment = os.environ | {"PYTHONPATH": f"{HERE.parent}:{tmp_path}"}
    file = tmp_path / "scheduler.json"
    quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    words = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--scheduler-file", str(file),
             "--port", "0", "--host", "127.0.0.1", "--no-dashboard"]  # fmt: skip
    # The scheduler is started by its own command, as documented: it has no grader.
    bare = quiet | {"env": {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}}
    started = [subprocess.Popen(words, **bare, cwd="/")]  # type: ignore[call-overload]
    deadline = time.monotonic() + 60
    while not file.exists() or not file.read_text().endswith("}"):
        assert time.monotonic() < deadline and started[0].poll() is None
        time.sleep(0.05)
    words = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file),
             "--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1",
             "--preload", "stand_in"]  # fmt: skip
    started += [subprocess.Popen(words, **quiet) for _ in range(2)]  # type: ignore[call-overload]
    try:
        yield json.loads(file.read_text())["address"]
    finally:
        for process in started:
            process.kill()
            process.wait()


def results(out: Path) -> dict[str, bytes]:
    return contents(out, lambda name: not name.startswith((".", "timings.csv")))


def test_worker_killed_in_the_middle_changes_no_byte(tmp_path, scheduler):
    source = small_class(tmp_path / "class", **CLASS)
    run(source, tmp_path / "here")
    words = ["batch", str(source), "--out", str(tmp_path / "out"), "--cluster", scheduler]
    process = subprocess.Popen([sys.executable, "-m", "grader", *words, "--quiet"], cwd=HERE.parent)
    deadline = time.monotonic() + 90
    notes, victims = tmp_path / "notes", []
    while len(list((tmp_path / "out").glob("store/*/*.json"))) < 4 or len(victims) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
        victims = sorted(notes.iterdir()) if notes.is_dir() else []
    assert len(victims) == 2
    os.kill(int(victims[0].name), signal.SIGKILL)
    assert process.wait(timeout=90) == 0
    assert results(tmp_path / "out") == results(tmp_path / "here")


def test_worker_without_the_grader_is_named_at_the_start(tmp_path, scheduler, monkeypatch, capsys):
    monkeypatch.setattr(cluster, "plain_probe", lambda: lambda: "ModuleNotFoundError: no grader")
    source = small_class(tmp_path / "class", anna="x")
    words = ["batch", str(source), "--out", str(tmp_path / "out"), "--cluster", scheduler]
    assert command_line.main([*words, "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "cannot grade, such as tcp://127.0.0.1" in said and "PYTHONPATH" in said


def test_nobody_at_the_address_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cluster, "_ANSWER_S", 1.0)
    source = small_class(tmp_path / "class", anna="x", ben="y")
    words = ["batch", str(source), "--out", str(tmp_path / "out"), "--cluster", "tcp://127.0.0.1:9"]
    options = command_line.parser().parse_args(words)
    assert command.main(options) == command.CANNOT_RUN
    assert "no Dask scheduler answers there" in capsys.readouterr().err


def test_without_the_extra_the_message_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    source = small_class(tmp_path / "class", anna="x", ben="y")
    words = ["batch", str(source), "--out", str(tmp_path / "out"), "--cluster", "local"]
    assert command.main(command_line.parser().parse_args(words)) == command.CANNOT_RUN
    assert "pip install '.[cluster]'" in capsys.readouterr().err
