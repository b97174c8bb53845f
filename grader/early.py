"""Workers that are started, or asked, before their answers are wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, TypeVar

import pytest

from grader import sandbox
from grader.draws import Draws
from grader.job import Job
from grader.launchers import WorkersUnavailable
from grader.submission import Question, Submission
from grader.workers import Worker

T = TypeVar("T")
Starting = Callable[[], Worker]
Making = Callable[[], tuple[Question, ...]]


class Asked(NamedTuple):
    """What was answered to a check's early questions, errors too, and who can be asked more."""

    answers: list[Any]
    submission: Submission


Answering = Callable[[], Asked]


def questions_of(item: pytest.Item, job: Job) -> tuple[Question, ...]:
    """Return what a check asks early; it draws what it would draw by itself."""
    (marker,) = item.iter_markers("early")
    rng = Draws(job.seed, item.name)
    questions: tuple[Question, ...] = marker.kwargs["questions"](rng, job.settings)
    return questions


def result_of(future: Future[T]) -> T:
    """Wait for a result, or raise what was raised."""
    while not future.done():
        # A Ctrl-C that comes just before an endless wait would not end it.
        wait([future], timeout=0.5)
    return future.result()


class First:
    """A run's first worker, started while the checks are still being collected."""

    def __init__(self, start: Starting) -> None:
        """Start it at once, in a thread; `start` makes all further ones."""
        self.start = start
        self.pool = ThreadPoolExecutor(1)
        self.ready: list[Future[Worker]] = [self.pool.submit(start)]

    def take(self) -> Worker:
        """Return the first worker at the first call, from whatever thread, and then others."""
        try:
            first = self.ready.pop()
        except IndexError:
            return self.start()
        return result_of(first)

    def close(self) -> None:
        """End the first worker if nobody has wanted it."""
        self.pool.shutdown()
        for first in self.ready:
            if first.exception() is None:
                first.result().close()


class Apart:
    """A submission that is asked in a thread of its own, and can be given up at any moment."""

    def __init__(self, start: Starting, listen: Callable[[dict[str, Any]], None]) -> None:
        """Start workers with `start` once something is asked; `listen` hears of progress."""
        self.start = start
        self.closed = False
        self.turn = threading.Lock()
        self.latest: Worker | None = None
        self.submission = Submission(self._worker, listen)
        self.pool = ThreadPoolExecutor(1)

    def _worker(self) -> Worker:
        """Start a worker, which is closed at once if nobody wants it any more by then."""
        worker = None if self.closed else self.start()
        with self.turn:
            self.latest = worker
            if worker is not None and not self.closed:
                return worker
        if worker is not None:
            worker.close()
        raise WorkersUnavailable("nobody wants this answer any more")

    def close(self) -> None:
        """Give everything up and wait until the thread has ended."""
        with self.turn:
            self.closed = True
            if self.latest is not None and self.latest.alive:
                # Only killed: the thread that waits for its answer closes the connection itself.
                sandbox.kill_tree(self.latest.pid)
        self.pool.shutdown(cancel_futures=True)
        self.submission.close()


class Beside(Apart):
    """What later checks of a task ask early, answered while earlier ones are judged."""

    def __init__(self, start: Starting, asking: Mapping[str, Making]) -> None:
        """Begin at once; `asking` makes the questions of each check, by its name."""
        super().__init__(start, lambda event: None)
        self.asked = {name: self.pool.submit(self._ask, make) for name, make in asking.items()}

    def _ask(self, make: Making) -> list[Any]:
        return self.submission.attempt(*make())

    def take(self, name: str) -> Asked | None:
        """Return a check's answers, or None where it asked nothing early.

        Raises:
            WorkerLost: no answer came.
        """
        found = self.asked.get(name)
        return None if found is None else Asked(result_of(found), self.submission)
