"""Steps to 0.99 of held-out rows for every position scheme, part and mixture of parts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from bench.options import parse
from bench.training import HELD_OUT_ROWS, decode
from grader.bench.rounds import tell
from transformer.config import FEED_FORWARDS, LAB, LAB_RECIPE, NORMS, PLACEMENTS
from transformer.data import SequenceBatch, sequence_batches
from transformer.generation import evaluating
from transformer.metrics import exact_match, sequence_accuracy
from transformer.models import Seq2SeqTransformer
from transformer.training import teacher_forcing, train

TARGET = 0.99
BUDGETS = (300, 3000)  # the second where the first is not enough; each has its own schedule
LOOKS = 24
POSITIONS: dict[str, dict[str, Any]] = {
    "learned": {},
    "sinusoidal": {"positions": "sinusoidal"},
    "rope": {"positions": "rope"},
    "rope, in cross-attention too": {"positions": "rope", "rope_cross": True},
    "learned, and rope in cross-attention": {"rope_cross": True},
    "t5bias": {"positions": "t5bias"},
    "none": {"positions": "none"},
}
PARTS: dict[str, dict[str, Any]] = {
    "post-norm": {"placement": "post"},
    "RMS norm": {"norm": "rmsnorm"},
    "ReLU": {"ffn": "relu"},
    "SwiGLU": {"ffn": "swiglu"},
    "GEGLU": {"ffn": "geglu"},
    "grouped-query, 2 of 4": {"num_kv_heads": 2},
    "multi-query": {"num_kv_heads": 1},
    "no bias": {"bias": False},
    "tied output": {"tied": True},
    "dropout 0.1": {"dropout": 0.1},
    "ReLU, post-norm": {"ffn": "relu", "placement": "post"},
    "SwiGLU, RMS norm, grouped-query, no bias": {
        "ffn": "swiglu", "norm": "rmsnorm", "num_kv_heads": 2, "bias": False,
    },
}  # fmt: skip
TASKS: tuple[Literal["reverse", "copy"], ...] = ("reverse", "copy")
# What a part is tried with: positions, layers, task.
SETTINGS = tuple(itertools.product(("learned", "sinusoidal"), (1, 2), TASKS))


@dataclass(frozen=True)
class Trial:
    """One model and its task."""

    name: str
    fields: dict[str, Any]
    num_layers: int
    task: Literal["reverse", "copy"]

    def run(self, seed: int) -> dict[str, Any]:
        """Train with the smaller budget, then if need be with the larger; return what came out."""
        found: dict[str, Any] = {"name": self.name, "num_layers": self.num_layers,
                                 "task": self.task}  # fmt: skip
        for budget in BUDGETS:
            reached, last = self.train(budget, seed)
            found |= {f"at_{budget}": last}
            if reached:
                return found | {"steps": reached}
        return found

    def train(self, budget: int, seed: int) -> tuple[int, float]:
        """Return the first look at which TARGET was reached, 0 for none, and the last accuracy."""
        torch.manual_seed(seed)
        model = Seq2SeqTransformer(replace(LAB, num_layers=self.num_layers, **self.fields))
        recipe = replace(LAB_RECIPE, steps=budget)
        (held_out,) = sequence_batches(
            self.task, steps=1, batch_size=HELD_OUT_ROWS, seed=seed, held_out=True
        )
        batches = sequence_batches(
            self.task, steps=budget, batch_size=recipe.batch_size, seed=seed, held_out=False
        )
        reached = 0

        def watched() -> Iterator[SequenceBatch]:
            nonlocal reached
            for step, batch in enumerate(batches):
                if step and step % (budget // LOOKS) == 0 and not reached:
                    reached = step if answered(model, held_out) >= TARGET else 0
                yield batch

        train(model, watched(), recipe)
        last = answered(model, held_out, quick=False)
        return reached or (budget if last >= TARGET else 0), last


def answered(model: Seq2SeqTransformer, held_out: SequenceBatch, quick: bool = True) -> float:
    """Return the share of rows that the model answers freely.

    `quick`: 0 for a model that falls short even with the true past at hand.
    """
    assert held_out.source is not None
    with evaluating(model):
        forced = teacher_forcing(held_out.answers)
        logits = model(held_out.source, forced.decoder_inputs)
        if quick and sequence_accuracy(logits, forced.targets) < TARGET:
            return 0.0
        tokens = decode(model, held_out.source, forced.targets.shape[1])
    return float(exact_match(tokens[:, 1:], held_out.answers))


def trials() -> list[Trial]:
    """Return every position scheme at both depths on both tasks."""
    return [
        Trial(name, fields, num_layers, task)
        for name, fields in POSITIONS.items()
        for num_layers in (1, 2)
        for task in TASKS
    ]


def mixtures() -> dict[str, dict[str, Any]]:
    """Return every part alone, the two named recipes, and six mixtures drawn at random."""
    drawn, found = random.Random(0), dict(PARTS)
    choices: dict[str, tuple[Any, ...]] = {
        "ffn": FEED_FORWARDS, "norm": NORMS, "placement": PLACEMENTS,
        "num_kv_heads": (1, 2, 4), "bias": (True, False), "tied": (True, False),
    }  # fmt: skip
    while len(found) < len(PARTS) + 6:
        fields = {name: drawn.choice(values) for name, values in choices.items()}
        words = (fields["ffn"], fields["norm"], fields["placement"],
                 f"{fields['num_kv_heads']} of 4", "bias" if fields["bias"] else "no bias",
                 "tied" if fields["tied"] else "untied")  # fmt: skip
        found[", ".join(words)] = fields
    return found


def everywhere(name: str, fields: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train one part in all SETTINGS with the smaller budget; return the steps and the least."""
    found: dict[str, Any] = {"name": name}
    last = []
    for positions, num_layers, task in SETTINGS:
        trial = Trial(name, fields | {"positions": positions}, num_layers, task)
        reached, share = trial.train(BUDGETS[0], seed)
        found[f"{positions} {num_layers} {task}"] = reached
        last.append(share)
    return found | {"least": min(last)}


def main() -> None:
    """Run as many trials as there are rounds."""
    options = parse(__doc__ or "", "positions", "parts", seed=0)
    torch.set_num_threads(1)
    if options.what == "positions":
        for trial in trials()[: options.rounds]:
            tell(trial.run(options.seed))
    else:
        for name, fields in list(mixtures().items())[: options.rounds]:
            tell(everywhere(name, fields, options.seed))


if __name__ == "__main__":
    main()
