"""How good predictions are."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .data import EOS, PAD


class Baseline(NamedTuple):
    """What the most common token reaches when it is the answer to everything.

    Args:
        token_id: The token.
        token_accuracy: Share of the real targets that are this token.
        sequence_accuracy: Share of the rows that hold nothing else.
    """

    token_id: int
    token_accuracy: float
    sequence_accuracy: float


def token_accuracy(logits: Tensor, targets: Tensor, pad_id: int = PAD) -> float:
    """Return the share of real targets that are predicted.

    Args:
        logits: (B, T, V) float.
        targets: (B, T) int64.
        pad_id: Id of the targets that do not count.

    Raises:
        ValueError: Shapes that disagree, or no real target.
    """
    right, real = _judge(logits.argmax(dim=-1), targets, pad_id)
    return (right & real).sum().item() / real.sum().item()


def sequence_accuracy(logits: Tensor, targets: Tensor, pad_id: int = PAD) -> float:
    """Return the share of rows whose real targets are all predicted, given the true past.

    Args:
        logits: (B, T, V) float.
        targets: (B, T) int64.
        pad_id: Id of the targets that do not count.

    Raises:
        ValueError: Shapes that disagree, or no real target.
    """
    right, real = _judge(logits.argmax(dim=-1), targets, pad_id)
    return (right | ~real).all(dim=1).double().mean().item()


def most_common_baseline(
    targets: Tensor, pad_id: int = PAD, training_targets: Tensor | None = None
) -> Baseline:
    """Score the answer that is always the most common real target of the training.

    Args:
        targets: (B, T) int64, what is scored.
        pad_id: Id of the targets that do not count.
        training_targets: int64 of any shape, where the token is the most common one; None =
            targets, which flatters the baseline: no training tells it their most common token.

    Raises:
        ValueError: No real target.
    """
    counted = targets if training_targets is None else training_targets
    real = counted[counted != pad_id]
    if not len(real):
        raise ValueError(f"every one of the {counted.numel()} targets is padding (id {pad_id})")
    token_id = int(real.bincount().argmax())
    right, real = _judge(torch.full_like(targets, token_id), targets, pad_id)
    return Baseline(
        token_id,
        (right & real).sum().item() / real.sum().item(),
        (right | ~real).all(dim=1).double().mean().item(),
    )


def exact_match(generated: Tensor, answers: Sequence[Sequence[int]], eos_id: int = EOS) -> float:
    """Return the share of rows that were generated exactly, EOS included.

    Args:
        generated: (B, n) int64 new tokens, without BOS or prompt; what follows the first EOS
            of a row does not count.
        answers: B true answers, without EOS.
        eos_id: Id that ends an answer.

    Raises:
        ValueError: Another number of rows than answers, or no answers.
    """
    if len(generated) != len(answers) or not len(answers):
        raise ValueError(
            f"as many rows as answers are needed, at least 1, "
            f"got {len(generated)} and {len(answers)}"
        )
    right = sum(
        row[: len(answer) + 1] == [*answer, eos_id]
        for row, answer in zip(generated.tolist(), answers, strict=True)
    )
    return float(right / len(answers))


def _judge(predicted: Tensor, targets: Tensor, pad_id: int) -> tuple[Tensor, Tensor]:
    """Tell where the prediction is right and where the target is real, (B, T) bool each."""
    if predicted.shape != targets.shape:
        raise ValueError(
            f"predictions and targets must have one shape (B, T), "
            f"got {tuple(predicted.shape)} and {tuple(targets.shape)}"
        )
    real = targets != pad_id
    if not real.any():
        raise ValueError(f"every one of the {targets.numel()} targets is padding (id {pad_id})")
    return predicted == targets, real
