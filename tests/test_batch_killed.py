"""Whoever is killed in the middle, files stay valid and the next run goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path

import psutil
import pytest
from batch_cases import Stub, book, contents, run, small_class

from grader.run.pool import Pool

HERE = Path(__file__).resolve().parent
CLASS = {f"s{i:02}": f"right{i}" for i in range(24)}
SLOW_BATCH = """
import sys
sys.path[:0] = [{tests!r}, {root!r}]
from pathlib import Path
from batch_cases import Stub, run
sys.exit(run(Path({source!r}), Path({out!r}), engine=Stub(2, pause_s=0.1))[0])
"""
ASKED_TO_END = """
import sys
sys.path[:0] = [{tests!r}, {root!r}]
from batch_cases import Stub
from grader import __main__ as command_line
from grader.classroom import command
command.usual_engine = lambda *_: Stub(2, pause_s=0.2, contained=False)
sys.exit(command_line.main({words!r}))
"""
# Answers in its own way by what it is asked, as a referee's process might.
WORKER = """
import os, signal, sys, time
for line in sys.stdin:
    word, _, note = line.strip().partition(" ")
    if word == "die" or (word == "once" and not os.path.exists(note)):
        if word == "once":
            open(note, "w").close()
        print("half an answer", end="", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "hang":
        time.sleep(600)
    print(word, os.getpid(), flush=True)
"""


def results(out: Path) -> dict[str, bytes]:
    return contents(out, lambda name: not name.startswith((".", "timings.csv")))


def fleet(tmp_path: Path, jobs: int = 2, budget_s: float = 60.0) -> Pool:
    (tmp_path / "stand_in.py").write_text(WORKER)
    path = {"PYTHONPATH": str(tmp_path)}
    return Pool(jobs, "stand_in", budget_s=budget_s, environment=path)


@pytest.mark.parametrize("stored", [0, 3, 15])
def test_batch_that_was_killed_goes_on_and_grades_nothing_twice(tmp_path, stored):
    source, out = small_class(tmp_path / "class", **CLASS), tmp_path / "out"
    code = SLOW_BATCH.format(
        tests=str(HERE), root=str(HERE.parent), source=str(source), out=str(out)
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    note = out / ".temporary-whole"
    while len(list(out.glob("store/*/*.json"))) < stored or not note.exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    kept = list(out.glob("store/*/*.json"))
    assert all(json.loads(path.read_bytes())["tree"]["complete"] for path in kept)
    for path in out.glob("students/*/results.json"):
        json.loads(path.read_bytes())
    left = Path(note.read_text().strip())
    exit_code, engine = run(source, out)
    assert exit_code == 0 and len(engine.asked) == len(CLASS) - len(kept)
    assert not left.exists()
    run(source, tmp_path / "fresh")
    assert results(out) == results(tmp_path / "fresh")


def test_worker_that_dies_once_is_replaced_and_the_task_repeated(tmp_path):
    engine = fleet(tmp_path, jobs=1)
    try:
        first = engine.submit(b"fine").result()
        assert engine.submit(b"once " + os.fsencode(tmp_path / "note")).result() != b""
        assert engine.submit(b"fine").result() != first
    finally:
        engine.close()


def test_worker_that_dies_twice_costs_its_own_submission_only(tmp_path):
    engine = fleet(tmp_path)
    try:
        futures = {name: engine.submit(name.encode()) for name in ("a", "die", "b", "c")}
        wait(futures.values())
        assert "ended with -9, twice" in str(futures.pop("die").exception())
        assert [f.result().split()[0].decode() for f in futures.values()] == list(futures)
    finally:
        engine.close()


def test_referee_that_hangs_is_ended_at_its_budget_and_the_others_go_on(tmp_path):
    engine = fleet(tmp_path, budget_s=1.0)
    try:
        began = time.monotonic()
        hung = engine.submit(b"hang")
        assert [engine.submit(b"a").result().split()[0] for _ in range(20)] == [b"a"] * 20
        assert "no result after 1 seconds" in str(hung.exception())
        assert time.monotonic() - began < 20
    finally:
        engine.close()


@pytest.mark.parametrize("waiting", [0, 1, 6])
def test_closing_ends_what_is_at_work_and_begins_nothing(tmp_path, waiting):
    engine = fleet(tmp_path)
    began = time.monotonic()
    hung = [engine.submit(b"hang") for _ in range(2 + waiting)]
    while not all(child.process for child in engine.children):
        time.sleep(0.01)
    pids = [child.process.pid for child in engine.children if child.process]
    engine.close()
    assert all(future.done() for future in hung) and time.monotonic() - began < 30
    assert [child.process.pid for child in engine.children if child.process] == pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_engine_that_fails_for_one_leaves_the_others_their_scores(tmp_path):
    masks = CLASS | {"s05": "crash", "s11": "crash too"}
    source = small_class(tmp_path / "class", **masks)
    code, _ = run(source, tmp_path / "out", engine=Stub(3))
    rows = {row["submission"]: row["status"] for row in book(tmp_path / "out")}
    assert code == 3 and sorted(n for n, s in rows.items() if s != "passed") == ["s05", "s11"]
    small_class(source, s05="right", s11="right")
    assert run(source, tmp_path / "out")[0] == 0


def test_stopped_by_hand_it_says_so_and_goes_on(tmp_path, capsys):
    class Stopped(Stub):
        def submit(self, task: bytes):
            if self.waiting_for_hand == 0:
                raise KeyboardInterrupt
            self.waiting_for_hand -= 1
            return super().submit(task)

    source, engine = small_class(tmp_path / "class", **CLASS), Stopped(2)
    engine.waiting_for_hand = 10
    assert run(source, tmp_path / "out", engine=engine)[0] == 130
    out = tmp_path / "out"
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"stopped; what was graded is kept in {out / 'store'}: the same command goes on, and "
        "writes gradebook and page at its end"
    )
    assert not (out / "gradebook.csv").exists() and not (out / "index.html").exists()
    kept = len(list((tmp_path / "out").glob("store/*/*.json")))
    code, again = run(source, tmp_path / "out")
    assert code == 0 and kept > 0 and len(again.asked) == len(CLASS) - kept


def test_stopped_before_the_first_result_it_promises_nothing(tmp_path, capsys):
    class Stopped(Stub):
        def submit(self, task: bytes):
            raise KeyboardInterrupt

    source = small_class(tmp_path / "class", **CLASS)
    assert run(source, tmp_path / "out", engine=Stopped(2))[0] == 130
    said = "stopped before anything was graded: give the same command again\n"
    assert capsys.readouterr().err.endswith(said)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_that_asks_to_end_clears_up_and_keeps_what_was_graded(tmp_path, name):
    source, out = small_class(tmp_path / "class", **CLASS), tmp_path / "out"
    words = ["batch", str(source), "--out", str(out), "--quiet", "--isolation", "portable"]
    code = ASKED_TO_END.format(tests=str(HERE), root=str(HERE.parent), words=words)
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for(process, lambda: len(list(out.glob("store/*/*.json"))) >= 3)
    left = Path((out / ".temporary-whole").read_text().strip())
    process.send_signal(getattr(signal, name))
    said = process.communicate()[1].decode()
    assert process.returncode == 128 + getattr(signal, name)
    assert f"what was graded is kept in {out / 'store'}: the same command goes on" in said
    assert not left.exists() and not (out / ".temporary-whole").exists()
    kept = len(list(out.glob("store/*/*.json")))
    engine = Stub(contained=False)
    run(source, out, "--isolation", "portable", engine=engine)
    assert 3 <= kept < len(CLASS) and len(engine.asked) == len(CLASS) - kept


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_grading_that_is_asked_to_end_leaves_nothing_behind(tmp_path, name):
    (tmp_path / "tmp").mkdir()
    words = ["grade", "starter", "--quiet", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-m", "grader", *words, "--isolation", "portable"], cwd=HERE.parent,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(process, (tmp_path / "out/results.json").exists)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(getattr(signal, name))
    assert process.wait(60) == 128 + getattr(signal, name)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert psutil.wait_procs(children, 10)[1] == []
    assert json.loads((tmp_path / "out/results.json").read_bytes())["complete"] is False


def wait_for(process: subprocess.Popen[bytes], came: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not came():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.002)
