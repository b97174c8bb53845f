"""One training step taken apart: operators, dispatch, kernels, optimiser, and the floor below."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bench.floor import kernels
from bench.options import parse
from bench.peer import Peer
from bench.training import drawn
from grader.bench.rounds import interleave, tell
from transformer.config import LAB, LAB_RECIPE
from transformer.data import SequenceBatch
from transformer.models import Seq2SeqTransformer, count_params
from transformer.training import (
    make_optimizer,
    make_scheduler,
    masked_cross_entropy,
    teacher_forcing,
)

REPEATS = 40


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that reach a kernel or make a view, backward ones included."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class Step:
    """A training step in two halves, each of which can be timed alone.

    Args:
        model: It is trained on one batch over and over.
        batch: That batch.
    """

    def __init__(self, model: nn.Module, batch: SequenceBatch) -> None:
        self.model = model.train()
        self.batch = batch
        self.optimizer = make_optimizer(model, LAB_RECIPE)
        self.scheduler = make_scheduler(self.optimizer, LAB_RECIPE)
        self.parameters = list(model.parameters())
        self.whole()

    def differentiate(self) -> None:
        """Predict, take the loss and its gradients."""
        decoder_inputs, targets = teacher_forcing(self.batch.answers)
        loss = masked_cross_entropy(self.model(*self.batch.context, decoder_inputs), targets)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """Clip, and let optimiser and schedule take their step."""
        nn.utils.clip_grad_norm_(self.parameters, LAB_RECIPE.clip_norm)
        self.optimizer.step()
        self.scheduler.step()

    def whole(self) -> None:
        """Do both."""
        self.differentiate()
        self.update()

    def operators(self) -> int:
        """Return how many operators the step calls."""
        with Counting() as counting:
            self.whole()
        return int(counting.count)


def measure(rounds: int) -> Iterator[dict[str, float]]:
    """Yield the milliseconds of a step and its parts, the peer's and the floor's.

    The same step on one row of one token has next to nothing to compute: what it takes is Python,
    autograd and dispatch. What the real step takes beyond that is time in kernels.
    """
    torch.manual_seed(0)
    model = Seq2SeqTransformer(LAB)
    (batch,) = drawn(1, LAB_RECIPE.batch_size, 0)
    source = batch.context[0]
    ours, peer = Step(model, batch), Step(Peer(model), batch)
    empty = Step(Seq2SeqTransformer(LAB), SequenceBatch(source[:1, :1], [[]]))
    rows, length = source.shape
    calls = kernels(LAB, rows, length, length + 1, count_params(model))

    def floor() -> None:
        for call in calls:
            call()

    counts = {"operators": ours.operators(), "peer_operators": peer.operators()}
    subjects = {
        "whole": ours.whole,
        "peer": peer.whole,
        "floor": floor,
        "dispatch": empty.differentiate,
        "optimiser": ours.update,
    }
    for _ in range(rounds):
        taken = list(interleave(subjects, REPEATS))
        found = {name: 1e3 * statistics.median(r[name] for r in taken) for name in subjects}
        found["kernels"] = found["whole"] - found["dispatch"] - found["optimiser"]
        yield found | counts | {"floor_operators": len(calls)}


def main() -> None:
    """Take a step apart."""
    options = parse(__doc__ or "")
    torch.set_num_threads(1)
    for taken in measure(options.rounds):
        tell(taken)


if __name__ == "__main__":
    main()
