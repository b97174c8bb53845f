"""Processes that judge: one that ends is replaced, and who stops does not wait for the rest."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grader.run.pool import Pool, answered

ROOT = Path(__file__).resolve().parent.parent
JUDGE = """
import os, time
from grader.run.pool import serve

def judge(task):
    if task["do"] == "end":
        os._exit(3)
    time.sleep(task.get("seconds", 0))
    return {"seen": task["do"]}

serve(judge)
"""
STOPPED = """
from grader.run.pool import Pool

with Pool(2, "judge") as pool:
    for task, answer in pool.map({"do": n, "seconds": 0.2 if n < 2 else 60} for n in range(9)):
        print(answer, flush=True)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "judge.py").write_text(JUDGE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    return tmp_path


def test_every_task_gets_its_answer(place):
    with Pool(2, "judge") as pool:
        found = {task["do"]: answer for task, answer in pool.map({"do": n} for n in range(7))}
    assert found == {n: {"seen": n} for n in range(7)}


def test_the_process_that_ends_is_replaced(place):
    with Pool(1, "judge") as pool:
        assert pool.judge({"do": "end"}) is None
        assert pool.judge({"do": "go on"}) == {"seen": "go on"}


def test_a_missing_answer_is_an_error_where_all_are_needed(place):
    with Pool(1, "judge") as pool, pytest.raises(RuntimeError, match="ended at .*end"):
        list(answered(pool.map([{"do": "end"}])))


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_whoever_stops_does_not_wait_for_the_tasks_that_are_left(place):
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED], cwd=ROOT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout
    assert {process.stdout.readline(), process.stdout.readline()} == {
        "{'seen': 0}\n",
        "{'seen': 1}\n",
    }
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    # Only the one who was told to stop speaks of it.
    assert said.count("Traceback") == 1 and said.strip().endswith("KeyboardInterrupt")
    time.sleep(0.2)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
