"""Forward plus backward of the lab's model beside torch's, at one size or along a sweep."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn

from bench.options import parse
from bench.peer import Peer
from grader.bench.rounds import interleave, tell
from transformer.config import LAB
from transformer.data import sequence_batches
from transformer.models import Seq2SeqTransformer
from transformer.training import masked_cross_entropy, teacher_forcing

LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024)
WIDTHS = (32, 64, 128, 256, 512)
REPEATS = 7
SHORTEST_S = 0.05


class Subjects:
    """Our model and torch's with the same weights, and one batch for both.

    Args:
        d_model: D; F is 2 D, and a head is 8 wide below D 256 and 32 wide from there on, or 64
            at D 512.
        length: T; sources are one token shorter, and rows from half of it to all of it long.
        batch_size: B.
    """

    def __init__(self, d_model: int, length: int, batch_size: int) -> None:
        torch.manual_seed(0)
        heads = 4 if d_model < 256 else 8
        config = replace(
            LAB, d_model=d_model, d_ff=2 * d_model, num_heads=heads, max_len=max(512, length)
        )
        ours = Seq2SeqTransformer(config)
        self.models: dict[str, nn.Module] = {"ours": ours, "peer": Peer(ours)}
        (batch,) = sequence_batches(
            "reverse", steps=1, batch_size=batch_size, seed=0,
            min_length=length // 2, max_length=length - 1,
        )  # fmt: skip
        self.context = batch.context
        self.forced = teacher_forcing(batch.answers)

    def loss(self, name: str) -> Tensor:
        """Return one model's loss."""
        logits = self.models[name](*self.context, self.forced.decoder_inputs)
        return masked_cross_entropy(logits, self.forced.targets)

    def step(self, name: str) -> None:
        """Take the gradients once, in train mode."""
        model = self.models[name].train()
        model.zero_grad()
        self.loss(name).backward()  # type: ignore[no-untyped-call]

    def forward(self, name: str) -> None:
        """Predict once, without gradients and in eval mode."""
        self.models[name].eval()
        with torch.no_grad():
            self.loss(name)

    def timed(self, action: Callable[[str], None], rounds: int) -> Iterator[dict[str, float]]:
        """Yield the seconds that one action takes each model, round by round."""
        began = time.perf_counter()
        action("ours")
        action("peer")
        # A round long enough to measure; both models take the same number of steps in it.
        count = math.ceil(2 * SHORTEST_S / (time.perf_counter() - began))

        def often(name: str) -> None:
            for _ in range(count):
                action(name)

        for taken in interleave({name: partial(often, name) for name in self.models}, rounds):
            yield {name: seconds / count for name, seconds in taken.items()}


def sweep(points: list[tuple[int, int, int]]) -> Iterator[dict[str, float]]:
    """Yield at every (d_model, length, batch size) the milliseconds of each model's median."""
    for d_model, length, batch_size in points:
        subjects = Subjects(d_model, length, batch_size)
        found: dict[str, float] = {"d_model": d_model, "length": length}
        for action in (subjects.step, subjects.forward):
            rounds = list(subjects.timed(action, REPEATS))
            for name in subjects.models:
                seconds = statistics.median(r[name] for r in rounds)
                found[f"{name}_{action.__name__}"] = 1e3 * seconds
        yield found


def main() -> None:
    """Measure what the command line asks for."""
    options = parse(__doc__ or "", "size", "length", "width", d=32, length=8, batch=128)
    torch.set_num_threads(1)
    if options.what == "size":
        subjects = Subjects(options.d, options.length, options.batch)
        found = subjects.timed(subjects.step, options.rounds)
    elif options.what == "length":
        found = sweep([(options.d, length, options.batch) for length in LENGTHS])
    else:
        found = sweep([(width, options.length, options.batch) for width in WIDTHS])
    for taken in islice(found, options.rounds):
        tell(taken)


if __name__ == "__main__":
    main()
