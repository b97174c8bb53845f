"""Greedy decoding by the referee: it feeds the ids back and alone knows the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.asking.submission import Submission, call, forward, handle, tensor
from grader.base.student_error import StudentError
from grader.gates.invariance import pick_logits
from grader.gates.sequences import Answers, Sequences, padded
from grader.model.draws import BOS, EOS, Ids, Row

# Two logits nearer than this, times the largest, may change places with the size of a batch.
NEAR_TIE = 1e-4


@dataclass
class Decoded:
    """What one model wrote: tokens (N, T) under their true names, T = the longest answer + EOS.

    `tied` (N, T) marks choices that rounding may turn; `trouble` is what ended the decoding.
    """

    tokens: Ids
    tied: np.ndarray
    trouble: StudentError | None = None


def decode(
    submission: Submission, handles: Sequence[str], rows: Sequence[Row], data: Sequences
) -> dict[str, Decoded]:
    """Decode the rows with every model, one forward per position over all rows."""
    source = data.disguise[padded(rows, data.lab.data.max_length)]
    shape = (len(rows), data.steps)
    written = {name: np.full(shape, EOS, dtype=np.int64) for name in handles}
    tied = {name: np.zeros(shape, bool) for name in handles}
    trouble: dict[str, StudentError] = {}
    for step in range(data.steps):
        alive = [name for name in handles if name not in trouble]
        questions = [
            forward(name, {"args": [source, prefix_of(written[name], step)]}, dtype="float32")
            for name in alive
        ]
        for name, answer in zip(alive, submission.attempt(*questions), strict=True):
            if isinstance(answer, StudentError):
                trouble[name] = answer
                continue
            logits = last_logits(answer["outputs"][0], len(rows), step + 1, data)
            ended = (written[name][:, :step] == EOS).any(axis=1)
            written[name][:, step] = np.where(ended, EOS, logits.argmax(axis=-1))
            best = np.sort(logits, axis=-1)[:, -2:]
            tied[name][:, step] = best[:, 1] - best[:, 0] < NEAR_TIE * np.abs(logits).max(axis=-1)
    names = np.argsort(data.disguise)
    return {name: Decoded(names[written[name]], tied[name], trouble.get(name)) for name in handles}


def prefix_of(written: Ids, step: int) -> Ids:
    """Return BOS and the first `step` tokens of every row."""
    start = np.full((len(written), 1), BOS, dtype=np.int64)
    return np.concatenate([start, written[:, :step]], axis=1)


def last_logits(value: Any, rows: int, length: int, data: Sequences) -> np.ndarray:
    """Return the logits of the last position (N, V); what is not finite counts as lowest."""
    shape = (rows, length, data.lab.model.vocab_size)
    value = pick_logits(value, shape)
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        value = np.nan_to_num(value, nan=-1e30, posinf=1e30, neginf=-1e30)
    return tensor(value, shape, "the logits while decoding", "decoder")[:, -1].astype(np.float64)


def exact(tokens: Ids, answers: Answers) -> np.ndarray:
    """Return (N,) bool: the rows that give their answer and then EOS; what follows is free."""
    return np.array([
        list(row[: len(answer) + 1]) == [*answer, EOS]
        for row, answer in zip(tokens.tolist(), answers, strict=True)
    ])  # fmt: skip


def generated(submission: Submission, name: str, rows: Sequence[Row], data: Sequences) -> Ids:
    """Return what the package's own greedy decoding writes, (N, T) as in `Decoded`."""
    source = data.disguise[padded(rows, data.lab.data.max_length)]
    # Without a cache, which is a stretch task.
    question = call(
        "generation.generate_seq2seq", handle(name), source, max_new_tokens=data.steps,
        use_cache=False, dtype="float32",
    )  # fmt: skip
    (answer,) = submission.ask(question)
    value = answer["value"]
    tokens = np.full((len(rows), data.steps), EOS, dtype=np.int64)
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.shape[1] <= data.steps + 1:
        value = tensor(value, value.shape, "generate_seq2seq", "generation", "i")
        if len(value) == len(rows) and ((value >= 0) & (value < len(data.disguise))).all():
            tokens[:, : value.shape[1] - 1] = value[:, 1:]
            return np.argsort(data.disguise)[tokens]
    tensor(value, (len(rows), data.steps + 1), "generate_seq2seq", "generation", "i")
    return tokens


def disagreements(decoded: Decoded, other: Ids) -> list[int]:
    """Return the rows where two decodings part, unless they part at a tie."""
    apart = decoded.tokens != other
    first = apart.argmax(axis=1)
    rows = np.flatnonzero(apart.any(axis=1))
    return [int(r) for r in rows if not decoded.tied[r, first[r]]]
