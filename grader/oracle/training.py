"""The loss that training lowers."""

from __future__ import annotations

import math

import numpy as np

from grader.oracle.scope import Array, Ids


def masked_cross_entropy(logits: Array, targets: Ids, pad_id: int) -> float:
    """Mean of -log softmax(logits)[target] over the targets that are not padding, in nats.

    Args:
        logits: (B, T, V).
        targets: (B, T).
        pad_id: Targets with this id are left out.

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
