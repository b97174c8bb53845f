"""What is started or asked early changes no verdict, and nothing of it is left behind."""

import itertools
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from grader import early, intake, settings
from grader.early import First
from grader.engine import Referee, Request
from grader.job import Job
from grader.launchers import Started, WorkersUnavailable
from grader.spare_launcher import SpareLauncher
from grader.submission import call
from grader.workers import WorkerLost

LAB = settings.load()
SHORT = replace(LAB, limits=replace(LAB.limits, question_s=2.0))
TRAIN = "    optimizer = make_optimizer(model, recipe)\n    scheduler"
ENDS = "    import os; os._exit(3)\n"
HANGS = "    while True: pass\n"
ENDS_WHEN_SHORT = "    batches = list(batches)\n    if len(batches) < 4:\n    " + ENDS
# From its fourth call on it fails whatever it is given.
COUNTS = """
    recipe.__class__.calls = getattr(recipe.__class__, "calls", 0) + 1
    if recipe.__class__.calls > 3:
        raise IndexError("no more")
"""


@pytest.fixture(scope="module")
def referee():
    with Referee(SHORT) as made:
        yield made


def bare(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: bare(v) for k, v in tree.items() if k not in ("seconds", "replay")}
    return [bare(v) for v in tree] if isinstance(tree, list) else tree


def tree_with(home: Path, old: str, new: str) -> Path:
    shutil.copytree("solution", home, ignore=shutil.ignore_patterns("__pycache__"))
    path = home / "transformer/training.py"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    return home


@pytest.mark.parametrize(
    ("old", "new", "how"),
    [
        ("", "", "passed"),
        (TRAIN, ENDS + TRAIN, "crashed"),
        (TRAIN, HANGS + TRAIN, "timeout"),
        (TRAIN, ENDS_WHEN_SHORT + TRAIN, "crashed"),
        (TRAIN, COUNTS + TRAIN, "error"),
        ("from .config", "raise RuntimeError\nfrom .config", "error"),
    ],
)
@pytest.mark.parametrize("tasks", [{"6"}, {"6.4"}])
def test_verdicts_are_those_of_checks_that_ask_in_turn(
    tmp_path, monkeypatch, referee, tasks, old, new, how
):
    tree = tree_with(tmp_path / "tree", old, new) if old else Path("solution")
    request = Request(path=tree, tasks=frozenset(tasks), gates=0)
    taken = []
    take = early.Beside.take
    monkeypatch.setattr(early.Beside, "take", lambda *a: taken.append(a) or take(*a))
    found = referee.grade(request)
    assert bool(taken) == (tasks == {"6"})
    monkeypatch.setattr(referee.workshop, "forks", False)
    taken.clear()
    assert bare(referee.grade(request)) == bare(found) and not taken
    (entry,) = [e for e in found["parts"] if e["task"] == "6"]
    statuses = {check["status"] for check in entry["checks"]}
    assert statuses <= {"passed", "blocked", how} and how in statuses


def test_first_worker_is_taken_once_and_ended_if_nobody_wants_it():
    made = []

    def start():
        worker = SimpleNamespace(thread=threading.current_thread(), ended=False)
        worker.close = lambda: setattr(worker, "ended", True)
        made.append(worker)
        return worker

    first = First(start)
    workers = [first.take(), first.take()]
    first.close()
    assert workers == made and not any(w.ended for w in made)
    assert [w.thread is threading.main_thread() for w in made] == [False, True]
    First(start).close()
    assert made[-1].ended


def test_first_worker_that_cannot_start_is_said_to_who_wants_it():
    def start():
        raise WorkersUnavailable("no room")

    first = First(start)
    with pytest.raises(WorkersUnavailable, match="no room"):
        first.take()
    first.close()
    First(start).close()


def test_spare_process_is_handed_out_once(monkeypatch):
    numbers, far = itertools.count(1), []

    def spawn(self):
        near, other = socket.socketpair()
        far.append(other)
        time.sleep(0.01)
        return Started(next(numbers), near, None)

    monkeypatch.setattr(SpareLauncher, "_spawn", spawn)
    launcher = SpareLauncher({})
    plan = SimpleNamespace(to_json=dict)
    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(lambda _: launcher.launch(plan, Path()), range(24)))
    assert sorted(one.pid for one in started) == list(range(1, 25))
    for end in [*far, *(one.connection for one in started), launcher.spare.connection]:
        end.close()


def test_what_nobody_waits_for_is_given_up(referee, tmp_path):
    tree = tree_with(tmp_path / "tree", TRAIN, HANGS + TRAIN)
    began = time.monotonic()
    staged = intake.overlay_given(intake.stage(tree, tmp_path / "staged", SHORT), Path("solution"))
    job = Job(SHORT, 0, lambda: referee.workshop.worker(staged.root), lambda event: None)
    asking = {name: lambda: (call("training.train", 1, 2, 3),) for name in ("first", "second")}
    beside = early.Beside(job.start_worker, asking)
    with pytest.raises(WorkerLost, match="no answer within 2 s"):
        beside.take("first")
    beside.close()
    assert time.monotonic() - began < 4.0 and not beside.latest.alive


def test_nothing_stays_when_the_run_is_interrupted(referee):
    standing = {p.pid for p in psutil.Process().children(recursive=True)}

    def stop(event):
        if event["kind"] == "end":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        referee.grade(Request(path=Path("solution"), tasks=frozenset({"6"}), gates=0), stop)
    gone, alive = psutil.wait_procs(
        [p for p in psutil.Process().children(recursive=True) if p.pid not in standing], 5.0
    )
    assert not alive
