"""The training of gate 4, begun while the other checks are judged: a second core would idle."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from grader import sandbox, sequences, training
from grader.draws import Draws
from grader.launchers import WorkersUnavailable
from grader.settings import Settings
from grader.submission import Submission
from grader.training import Attempt
from grader.workers import Worker

Listener = Callable[[dict[str, Any]], None]


class Ahead:
    """The first training of a submission, in a thread of the referee and a worker of its own."""

    def __init__(self, start: Callable[[], Worker], rng: Draws, lab: Settings) -> None:
        """Begin at once; `rng` is the gate's, so that it trains what the gate would."""
        self.start, self.rng, self.lab = start, rng, lab
        self.closed = False
        self.turn = threading.Lock()
        self.latest: Worker | None = None
        self.listen: Listener | None = None
        self.last: dict[str, Any] | None = None
        self.submission = Submission(self._worker, self._hear)
        self.pool = ThreadPoolExecutor(1)
        self.future = self.pool.submit(self._train)

    def _worker(self) -> Worker:
        """Start a worker, which is closed at once if nobody wants it any more by then."""
        worker = None if self.closed else self.start()
        with self.turn:
            self.latest = worker
            if worker is not None and not self.closed:
                return worker
        if worker is not None:
            worker.close()
        raise WorkersUnavailable("this training is not wanted any more")

    def _hear(self, event: dict[str, Any]) -> None:
        self.last = event
        if self.listen is not None:
            self.listen(event)

    def _train(self) -> Attempt:
        with np.errstate(all="ignore"):
            data = sequences.draw(self.rng, self.lab)
            made = training.begin(data, 0)
            training.train(self.submission, data, made)
            return made

    def result(self, listen: Listener) -> Attempt:
        """Wait for the end and raise what it raised; `listen` hears how far it is, from now on."""
        if self.last is not None:
            listen(self.last)
        self.listen = listen
        while not self.future.done():
            # A Ctrl-C that comes just before an endless wait would not end it.
            wait([self.future], timeout=0.5)
        return self.future.result()

    def close(self) -> None:
        """Give the training up and wait until its thread has ended."""
        with self.turn:
            self.closed = True
            if self.latest is not None and self.latest.alive:
                # Only killed: the thread that waits for its answer closes the connection itself.
                sandbox.kill_tree(self.latest.pid)
        self.pool.shutdown()
        self.submission.close()
