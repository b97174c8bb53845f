"""What gate 4 teaches and asks: sequences, and their answers under this run's permutation.

Held-out rows and look rows are never in a batch, and only the referee knows their answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.base.sequence_tasks import TASKS
from grader.base.settings import Settings
from grader.model.draws import BOS, EOS, PAD, Draws, Ids, Row

Answers = list[list[int]]
# A batch of seven columns takes a tenth longer than one of eight.
LANES = 8


@dataclass(frozen=True)
class Sequences:
    """The data of one run.

    Attributes:
        permutation: (V,) what each id becomes in an answer; as easy to learn as the plain task, and
            nothing that was written down before the run can know it.
        disguise: (V,) what each id is called in the questions about held-out rows.
        held_out: rows that the trained model has to answer.
        look: other rows, which tell during a training whether the model has learned.
    """

    rng: Draws
    lab: Settings
    permutation: Ids
    disguise: Ids
    held_out: list[Row]
    look: list[Row]

    def answers(self, rows: Sequence[Row]) -> Answers:
        """Return the right answers, without BOS and EOS."""
        names = self.permutation.tolist()
        return [[names[i] for i in answer] for answer in self.plain_answers(rows)]

    def plain_answers(self, rows: Sequence[Row]) -> Answers:
        """Return what the answers would be without the permutation."""
        return [TASKS[self.lab.data.task](row) for row in rows]

    def batch(self, attempt: int, step: int) -> list[Row]:
        """Draw the rows of one batch of a training."""
        return self.rng.child(f"batch {step} of training {attempt}").rows(
            self.lab.recipe.batch_size,
            self.lab.data.min_length,
            self.lab.data.max_length,
            self.lab.model.vocab_size,
            exclude=[*self.held_out, *self.look],
        )

    @property
    def steps(self) -> int:
        """Return how many tokens the longest answer has, with EOS."""
        return self.lab.data.max_length + 1


def draw(rng: Draws, lab: Settings) -> Sequences:
    """Draw the permutation, the disguise, the held-out rows and the look rows."""
    size, shortest, longest = lab.model.vocab_size, lab.data.min_length, lab.data.max_length
    held_out = rng.child("held out").rows(
        lab.accuracy.held_out_rows, shortest, longest, size, unique=True
    )
    look = rng.child("look").rows(
        lab.accuracy.look_rows, shortest, longest, size, exclude=held_out, unique=True
    )
    return Sequences(
        rng,
        lab,
        rng.child("permutation").permutation_of_data_ids(size),
        rng.child("disguise").permutation_of_data_ids(size),
        held_out,
        look,
    )


def padded(rows: Sequence[Sequence[int]], width: int | None = None) -> Ids:
    """Return the rows padded on the right, (B, longest or width)."""
    ids = np.full((len(rows), width or max(map(len, rows))), PAD, dtype=np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return ids


def forced(answers: Answers, width: int) -> tuple[Ids, Ids]:
    """Return decoder inputs and targets, (B, width) each."""
    inputs = padded([[BOS, *answer] for answer in answers], width)
    targets = padded([[*answer, EOS] for answer in answers], width)
    return inputs, targets


def renamed(values: dict[str, np.ndarray], disguise: Ids) -> dict[str, np.ndarray]:
    """Rename the ids inside trained weights, as a model that learned under other names has them.

    The rows of the token tables and of the output projection change places. To a model that
    answers from its weights the names mean nothing; an answer kept anywhere under the old names
    is lost.
    """
    size = len(disguise)
    new = dict(values)
    for name in ("source_embedding.weight", "target_embedding.weight", "output_projection.weight"):
        table = values.get(name)
        if table is not None and table.ndim == 2 and len(table) == size:
            new[name] = np.empty_like(table)
            new[name][disguise] = table
    return new


def scrambled(values: dict[str, np.ndarray], rng: Draws) -> dict[str, np.ndarray]:
    """Let the entries of every tensor change places among themselves."""
    new = {}
    for name, value in values.items():
        order = np.argsort(rng.child(name).uniform((value.size,), 0.0, 1.0), kind="stable")
        new[name] = value.reshape(-1)[order].reshape(value.shape)
    return new


def reply(rows: Sequence[Row], answers: Answers) -> dict[str, Any]:
    """Return what a worker gets for one draw; full columns of padding make its steps faster."""
    longest = max(map(len, rows))
    return {"source": padded(rows, longest + -longest % LANES), "answers": answers}
