"""`python -m grader watch`: each save is answered, whatever was saved, and nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from grader.base import settings
from grader.base.result import Outcome, Status
from grader.cli import check, watch

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 120.0
VERDICT = "after the save"


class Watched:
    """A `watch` process, its output line by line, and the tree it looks at."""

    def __init__(self, folder: Path, *tasks: str) -> None:
        ignored = shutil.ignore_patterns("__pycache__")
        self.tree = Path(shutil.copytree(ROOT / "solution", folder / "tree", ignore=ignored))
        self.masks = self.tree / "transformer" / "masks.py"
        self.text = self.masks.read_text()
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "grader", "watch", *tasks, "--tree", str(self.tree)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.put(line)

    def end(self) -> None:
        """Press Ctrl-C and wait for the end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(30)
        self.reader.join(10)

    def until(self, words: str) -> str:
        """Return the output up to the line that holds `words`."""
        deadline = time.monotonic() + PATIENCE_S
        seen = []
        while not seen or words not in seen[-1]:
            try:
                seen.append(self.lines.get(timeout=max(deadline - time.monotonic(), 0.01)))
            except queue.Empty:
                pytest.fail(f"{words!r} did not come; got {''.join(seen)}")
        return "".join(seen)

    def save(self, text: str) -> str:
        """Save masks.py and return the verdict of its task."""
        self.masks.write_text(text)
        return self.until(VERDICT)

    def family(self) -> list[psutil.Process]:
        """Return the process and everything it started."""
        process = psutil.Process(self.process.pid)
        return [process, *process.children(recursive=True)]


@contextlib.contextmanager
def watching(folder: Path) -> Iterator[Watched]:
    one = Watched(folder, "1")
    try:
        first = one.until("everything: ")
        assert "public checks: 8 of 8 passed" in first and VERDICT not in first
        yield one
    finally:
        one.end()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with watching(tmp_path) as one:
        yield one


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """One process for the tests that leave the tree as they found it."""
    with watching(tmp_path_factory.mktemp("watched")) as one:
        yield one


def test_each_save_gets_its_verdict(lasting):
    wrong = lasting.text.replace("tril(offset)", "tril(offset + 1)")
    assert wrong != lasting.text
    assert "1.2 wrong" in lasting.save(wrong)
    found = lasting.save(lasting.text)
    assert "1.2 done" in found and "wrong" not in found


def test_syntax_error_and_deleted_file_are_survived(lasting):
    assert "SyntaxError" in lasting.save("def broken(:\n")
    lasting.masks.unlink()
    assert "masks.py is missing" in lasting.until(VERDICT)
    assert "1.1 done" in lasting.save(lasting.text)


def test_deleted_tree_may_come_back(lasting):
    kept = lasting.tree.with_name("kept")
    lasting.tree.rename(kept)
    lasting.until("cannot check")
    shutil.copytree(kept, lasting.tree)
    assert "8 of 8 passed" in lasting.until(VERDICT)


def test_endless_loop_ends_after_a_few_seconds(lasting):
    began = time.monotonic()
    name = "def causal_mask("
    loop = lasting.text.replace(name, "while True:\n    pass\n\n\n" + name, 1)
    assert "no answer within 4 s" in lasting.save(loop)
    assert time.monotonic() - began < 60
    assert "1.1 done" in lasting.save(lasting.text)


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_nothing_runs_on_after_the_end(watched, which):
    family = watched.family()
    assert len(family) > 1
    watched.process.send_signal(which)
    assert watched.process.wait(30) == 0
    assert "stopped" in watched.until("stopped")
    _, left = psutil.wait_procs(family[1:], timeout=5)
    assert left == []


def test_interrupted_round_leaves_nothing_and_no_traceback(tmp_path):
    one = Watched(tmp_path, "1")
    one.until("watching")
    time.sleep(0.5)
    family = one.family()
    one.end()
    _, left = psutil.wait_procs(family[1:], timeout=5)
    assert left == []
    rest = []
    while not one.lines.empty():
        rest.append(one.lines.get())
    assert "Traceback" not in "".join(rest)


@pytest.mark.slow
def test_dependent_tasks_and_gates_follow_and_a_save_ends_the_round(tmp_path):
    one = Watched(tmp_path)
    try:
        one.until("everything: ")
        assert "1.2 wrong" in one.save(one.text.replace("tril(offset)", "tril(offset + 1)"))
        assert "1.2 done" in one.save(one.text)
        found = one.until("everything: ")
        if "gate future_independence" not in found:
            found = one.until("everything: ")
        assert "gate finite_gradients: ok" in found
        one.save(f"{one.text}# saved\n")  # all of it is right: the gates need not wait
        assert "gate finite_gradients: ok" in one.until("gates 1 to 3: ")
        assert "gate finite_gradients: ok" in one.until("everything: ")
    finally:
        one.end()


def test_task_that_was_wrong_is_looked_at_again_after_any_save():
    one = object.__new__(watch.Watcher)
    one.lab, one.tasks, one.owed, one.superseded = settings.load(), None, [], False
    one.stubs = [stub.id for stub in check.stubs_of(one.lab)]
    found = {"2.1": Status.PASSED, "3.1": Status.NOT_IMPLEMENTED, "S1": Status.BLOCKED,
             "S2": Status.ERROR, "6.3": Status.FAILED}  # fmt: skip
    one.outcomes = {stub: Outcome(stub, stub, None, status, "") for stub, status in found.items()}
    looked: list[list[str]] = []
    one.look = lambda tasks, **_: looked.append(list(tasks))
    one.show = lambda *_, **__: None
    one.round(["1"], 0.0)
    assert looked == [["1"], ["2", "4", "5", "6", "S2"], []]


@pytest.mark.parametrize("meant", [True, False])
def test_a_round_that_a_save_ends_is_told_from_one_that_control_c_ends(monkeypatch, meant):
    one = object.__new__(watch.Watcher)
    one.lab, one.tasks, one.owed, one.outcomes = settings.load(), None, [], {}
    one.stubs = [stub.id for stub in check.stubs_of(one.lab)]

    def look(*_: object) -> None:
        one.superseded = True
        raise KeyboardInterrupt

    one.look = look
    monkeypatch.setattr(watch, "asked", lambda: meant)
    with pytest.raises(KeyboardInterrupt) if meant else contextlib.nullcontext():
        one.round(["1"], 0.0)
