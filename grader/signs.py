"""What a trained model does, in numbers that a diagnosis can read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grader import sequences
from grader.decoding import exact
from grader.draws import EOS, PAD, Ids
from grader.invariance import pick_logits
from grader.sequences import Answers, Sequences
from grader.submission import Submission, forward
from grader.training import TRAINED, Attempt

CURVE_POINTS = 20


@dataclass(frozen=True)
class Signs:
    """What the trained model does, in shares of rows or tokens; losses in nats per token."""

    exact_match: float
    plain_match: float
    content: float
    ended: float
    forced: float
    repeats: float
    skips: float
    by_length: dict[str, float]
    by_position: list[float]
    unmoved: list[str]
    first_loss: float
    highest_loss: float
    lowest_loss: float
    last_loss: float


def read(submission: Submission, made: Attempt, data: Sequences) -> Signs:
    """Compare what the trained model writes with the answers, freely and with teacher forcing."""
    answers = data.answers(data.held_out)
    tokens = made.decoded[TRAINED].tokens
    right = exact(tokens, answers)
    _, targets = sequences.forced(answers, data.steps)
    real = targets != PAD
    hits = (tokens == targets) & real
    lengths = real.sum(axis=1)
    inputs, lesson, forced = teacher_forced(submission, made, data)
    later = np.roll(lesson, -1, axis=1)
    later[:, -1] = PAD
    smooth = smoothed(made.losses)
    return Signs(
        exact_match=float(right.mean()),
        plain_match=float(exact(tokens, data.plain_answers(data.held_out)).mean()),
        content=float(content_right(tokens, answers).mean()),
        ended=float((tokens == EOS).any(axis=1).mean()),
        forced=share(forced == lesson, lesson != PAD),
        repeats=share(forced == inputs, lesson != PAD),
        skips=share(forced == later, later != PAD),
        by_length={str(n - 1): float(right[lengths == n].mean()) for n in np.unique(lengths)},
        by_position=(hits.sum(axis=0) / np.maximum(real.sum(axis=0), 1)).tolist(),
        unmoved=unmoved(made),
        first_loss=float(smooth[0]),
        highest_loss=float(smooth.max()),
        lowest_loss=float(smooth.min()),
        last_loss=float(smooth[-1]),
    )


def teacher_forced(submission: Submission, made: Attempt, data: Sequences) -> tuple[Ids, Ids, Ids]:
    """Return inputs, targets and predictions (B, T) of the last batch that was trained on.

    The targets of held-out rows never enter a worker, so they cannot serve here.
    """
    rows = data.batch(made.number, max(made.drawn, 1) - 1)
    inputs, targets = sequences.forced(data.answers(rows), data.steps)
    source = data.disguise[sequences.padded(rows, data.lab.data.max_length)]
    call = {"args": [source, data.disguise[inputs]]}
    (answer,) = submission.ask(forward(TRAINED, call, dtype="float32"))
    shape = (*inputs.shape, data.lab.model.vocab_size)
    logits = pick_logits(answer["outputs"][0], shape)
    if not isinstance(logits, np.ndarray) or logits.shape != shape:
        return inputs, targets, np.full_like(targets, PAD)
    return inputs, targets, np.argsort(data.disguise)[np.nan_to_num(logits).argmax(axis=-1)]


def share(hits: np.ndarray, among: np.ndarray) -> float:
    """Return the share of the places `among` that are hits."""
    return float(hits[among].mean()) if among.any() else 0.0


def content_right(tokens: Ids, answers: Answers) -> np.ndarray:
    """Return (N,) bool: the rows that begin with their answer, wherever they end."""
    return np.array([
        row[: len(answer)] == answer for row, answer in zip(tokens.tolist(), answers, strict=True)
    ])  # fmt: skip


def smoothed(losses: list[float]) -> np.ndarray:
    """Return the losses averaged over a few steps, at `CURVE_POINTS` places."""
    if not losses:
        return np.array([np.nan])
    pieces = np.array_split(np.array(losses), min(CURVE_POINTS, len(losses)))
    return np.array([piece.mean() for piece in pieces])


def unmoved(made: Attempt) -> list[str]:
    """Name the parameters that training left as they were, or that only shrank as a whole."""
    still = []
    for name, before in made.initial.items():
        after = made.parameters.get(name)
        if after is None or after.shape != before.shape:
            continue
        length = float(np.square(before).sum())
        scale = float((after * before).sum()) / length if length else 0.0
        if np.abs(after - scale * before).max() <= 1e-6 * max(float(np.abs(before).max()), 1e-12):
            still.append(name)
    return still
