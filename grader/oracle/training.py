"""What training compares: the shifted target and the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from grader.oracle.scope import Array, Ids


class TeacherForcing(NamedTuple):
    """Decoder inputs and targets, both (B, T)."""

    decoder_inputs: Ids
    targets: Ids


def teacher_forcing(
    answers: Sequence[Sequence[int]], *, bos_id: int, eos_id: int, pad_id: int
) -> TeacherForcing:
    """Put BOS before each answer (the input) and EOS after it (the target); pad on the right."""
    length = 1 + max(len(answer) for answer in answers)
    decoder_inputs = np.full((len(answers), length), pad_id, dtype=np.int64)
    targets = np.full((len(answers), length), pad_id, dtype=np.int64)
    for b, answer in enumerate(answers):
        decoder_inputs[b, : len(answer) + 1] = [bos_id, *answer]
        targets[b, : len(answer) + 1] = [*answer, eos_id]
    return TeacherForcing(decoder_inputs, targets)


def masked_cross_entropy(logits: Array, targets: Ids, pad_id: int) -> float:
    """Mean of -log softmax(logits)[target] over the targets that are not padding, in nats.

    Args:
        logits: (B, T, V).
        targets: (B, T).
        pad_id: Target that is left out.

    Raises:
        ValueError: Every target is padding.
    """
    losses = []
    for b, t in np.ndindex(targets.shape):
        if targets[b, t] == pad_id:
            continue
        largest = logits[b, t].max()
        total = sum(math.exp(logit - largest) for logit in logits[b, t])
        losses.append(largest + math.log(total) - logits[b, t, targets[b, t]])
    if not losses:
        raise ValueError(f"targets must hold a real token, got only {pad_id}")
    return float(sum(losses) / len(losses))
