"""Workers that are started, or asked, before their answers are wanted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from grader.draws import Draws
from grader.job import Job
from grader.launchers import WorkersUnavailable
from grader.submission import Posted, Question, Submission
from grader.workers import Worker, WorkerLost

Starting = Callable[[], Worker]
Making = Callable[[], tuple[Question, ...]]


def questions_of(item: pytest.Item, job: Job) -> tuple[Question, ...]:
    """Return what a check asks early; it draws what it would draw by itself."""
    (marker,) = item.iter_markers("early")
    rng = Draws(job.seed, item.name)
    questions: tuple[Question, ...] = marker.kwargs["questions"](rng, job.settings)
    return questions


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
        while not first.done():
            # A Ctrl-C that comes just before an endless wait would not end it.
            wait([first], timeout=0.5)
        return first.result()

    def close(self) -> None:
        """End the first worker if nobody has wanted it."""
        self.pool.shutdown()
        for first in self.ready:
            if first.exception() is None:
                first.result().close()


class Beside:
    """A second worker, asked what later checks of a task want to know, by their names."""

    def __init__(self, start: Starting, asking: Mapping[str, Making]) -> None:
        """Begin at once, in a thread: to start a worker takes as long as a short check."""
        self.submission = Submission(start, lambda event: None)
        self.pool = ThreadPoolExecutor(1)
        self.posted = self.pool.submit(self._post, asking)

    def _post(self, asking: Mapping[str, Making]) -> dict[str, Posted]:
        posted: dict[str, Posted] = {}
        # What cannot be asked now is asked when its check comes, and judged there.
        with contextlib.suppress(WorkerLost, WorkersUnavailable):
            for name, make in asking.items():
                posted[name] = self.submission.post(*make())
        return posted

    def take(self, name: str) -> Posted | None:
        """Return a check's questions, unless their worker was lost over an earlier one's."""
        posted = self.posted.result().get(name)
        return posted if posted is not None and posted.worker.alive else None

    def close(self) -> None:
        """End the worker."""
        self.pool.shutdown()
        self.submission.close()
