"""What is started or asked early changes no verdict, and nothing of it is left behind."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from grader import early, settings
from grader.early import First
from grader.engine import Referee, Request
from grader.launchers import WorkersUnavailable

LAB = settings.load()
SHORT = replace(LAB, limits=replace(LAB.limits, question_s=2.0))
TRAIN = "    optimizer = make_optimizer(model, recipe)\n    scheduler"
ENDS = "    import os; os._exit(3)\n"
HANGS = "    while True: pass\n"
ENDS_WHEN_SHORT = "    batches = list(batches)\n    if len(batches) < 4:\n    " + ENDS


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
        (TRAIN, "    scheduler = 1\n" + TRAIN, "passed"),
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
    monkeypatch.setattr(early.Beside, "take", lambda *a: taken.append(take(*a)) or taken[-1])
    found = referee.grade(request)
    # What gets no answer is not asked a second time.
    assert any(taken) or (how, tasks) == ("timeout", {"6.4"})
    monkeypatch.setattr(early.Beside, "take", lambda *_: None)
    assert bare(referee.grade(request)) == bare(found)
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
