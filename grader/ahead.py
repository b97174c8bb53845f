"""The training of gate 4, begun while the other checks are judged: a second core would idle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader import sequences, training
from grader.draws import Draws
from grader.early import Apart, Starting, result_of
from grader.settings import Settings
from grader.training import Attempt

Listener = Callable[[dict[str, Any]], None]


class Ahead(Apart):
    """The first training of a submission, in a thread of the referee and a worker of its own."""

    def __init__(self, start: Starting, rng: Draws, lab: Settings) -> None:
        """Begin at once; `rng` is the gate's, so that it trains what the gate would."""
        super().__init__(start, self._hear)
        self.rng, self.lab = rng, lab
        self.listen: Listener | None = None
        self.last: dict[str, Any] | None = None
        self.future = self.pool.submit(self._train)

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
        return result_of(self.future)
