"""Synthetic sequences: copy, reverse, and a cyclic pattern.

Every dataset is a function of its arguments and its seed alone. Training and held-out rows of
copy and reverse never share a sequence, whatever their seeds: the content of a sequence decides
on which side it belongs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

PAD = 0
BOS = 1
EOS = 2
FIRST_DATA_ID = 3

TASKS = ("copy", "reverse")
HELD_OUT_SHARE = 5  # one sequence in five is held out
# Of fewer sequences than this, all belong to both sides: too few to divide.
SMALLEST_DIVIDED_SPACE = 64


@dataclass(frozen=True)
class SequenceBatch:
    """Sequences to read and the answers to them.

    Args:
        source: (B, S) token ids, padded on the right; None when there is nothing to read.
        answers: B answers without BOS, EOS or padding.
    """

    source: Tensor | None
    answers: list[list[int]]

    @property
    def context(self) -> tuple[Tensor, ...]:
        """What comes before the decoder inputs in a call: model(*batch.context, inputs)."""
        return () if self.source is None else (self.source,)


def sequence_batches(
    task: str,
    *,
    steps: int,
    batch_size: int,
    seed: int,
    vocab_size: int = 16,
    min_length: int = 3,
    max_length: int = 7,
    held_out: bool = False,
) -> Iterator[SequenceBatch]:
    """Yield batches of random sequences with their copy or reversal as answers.

    Args:
        task: "copy" or "reverse".
        steps: Number of batches, at least 1.
        batch_size: B.
        seed: Decides everything that is random.
        vocab_size: V; the ids from 3 to V - 1 carry data.
        min_length: Length of the shortest sequence, at least 1.
        max_length: Length of the longest; all lengths between are equally likely.
        held_out: Which of the two disjoint sides the sequences are drawn from.

    Raises:
        ValueError: An unknown task, a length, count or vocabulary out of range.
    """
    check_sequences(task, vocab_size, min_length, max_length)
    if steps < 1 or batch_size < 1:
        raise ValueError(f"steps and batch_size must be at least 1, got {steps} and {batch_size}")
    generator = torch.Generator().manual_seed(seed)
    # A generator function would report bad arguments only when the first batch is drawn.
    return (
        _sequence_batch(task, batch_size, vocab_size, min_length, max_length, held_out, generator)
        for _ in range(steps)
    )


def check_sequences(task: str, vocab_size: int, min_length: int, max_length: int) -> None:
    """Refuse a dataset that cannot be drawn.

    Args:
        task: "copy" or "reverse".
        vocab_size: V, above 3.
        min_length: At least 1.
        max_length: At least min_length.

    Raises:
        ValueError: The message holds the values.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    if not 1 <= min_length <= max_length:
        raise ValueError(
            f"lengths must satisfy 1 <= min <= max, got min {min_length} and max {max_length}"
        )
    if vocab_size <= FIRST_DATA_ID:
        raise ValueError(
            f"vocab_size must be above {FIRST_DATA_ID}, the number of special ids, got {vocab_size}"
        )


def _sequence_batch(
    task: str,
    batch_size: int,
    vocab_size: int,
    min_length: int,
    max_length: int,
    held_out: bool,
    generator: torch.Generator,
) -> SequenceBatch:
    accepted: list[Tensor] = []
    missing = batch_size
    while missing > 0:
        # About 1 / share of the rows belong to the wanted side.
        draws = 32 + (missing * HELD_OUT_SHARE if held_out else missing * 4 // 3)
        lengths = torch.randint(min_length, max_length + 1, (draws, 1), generator=generator)
        ids = torch.randint(FIRST_DATA_ID, vocab_size, (draws, max_length), generator=generator)
        ids = ids.masked_fill(torch.arange(max_length) >= lengths, PAD)  # (draws, S)
        kept = ids[_belongs(ids, lengths[:, 0], vocab_size, held_out)][:missing]
        accepted.append(kept)
        missing -= len(kept)
    source = torch.cat(accepted)
    longest = int((source != PAD).sum(dim=1).max())
    source = source[:, :longest].contiguous()  # (B, S)
    step = -1 if task == "reverse" else 1
    answers = [[id_ for id_ in row if id_ != PAD][::step] for row in source.tolist()]
    return SequenceBatch(source, answers)


def _belongs(ids: Tensor, lengths: Tensor, vocab_size: int, held_out: bool) -> Tensor:
    """Tell which rows of ids (N, S) belong to the wanted side, (N,) bool."""
    # A multiplicative hash; int64 products wrap around, which mixes as well as any.
    code = torch.zeros_like(lengths)
    for column in ids.unbind(dim=1):
        code = (code ^ column) * 0x5851F42D4C957F2D
        code = code ^ (code >> 29)
    belongs_to_held_out = code % HELD_OUT_SHARE == 0
    data_ids = vocab_size - FIRST_DATA_ID
    shared = data_ids ** lengths.double() < SMALLEST_DIVIDED_SPACE
    return shared | (belongs_to_held_out == held_out)


def cyclic_batches(
    *,
    steps: int,
    batch_size: int,
    seed: int,
    vocab_size: int = 16,
    pattern: int = 5,
    length: int = 12,
) -> Iterator[SequenceBatch]:
    """Yield batches of rows that walk round a cycle of ids, each from its own start.

    With a pattern of 3 and a length of 5 the rows are 3 4 5 3 4, 4 5 3 4 5 and 5 3 4 5 3. There
    are only as many rows as the pattern has ids, so training and held-out rows are the same.

    Args:
        steps: Number of batches, at least 1.
        batch_size: B.
        seed: Decides the starts.
        vocab_size: V; the pattern uses the ids from 3 on.
        pattern: Number of ids in the cycle, at least 2 and at most V - 3.
        length: Length of every row, at least 1.

    Raises:
        ValueError: A pattern, length or count out of range.
    """
    if steps < 1 or batch_size < 1 or length < 1:
        raise ValueError(
            f"steps, batch_size and length must be at least 1, "
            f"got {steps}, {batch_size} and {length}"
        )
    data_ids = vocab_size - FIRST_DATA_ID
    if pattern < 2 or data_ids < 2:
        raise ValueError(
            f"a pattern must have at least 2 ids out of at least 2, "
            f"got {pattern} out of {max(0, data_ids)}"
        )
    if pattern > data_ids:
        raise ValueError(f"a pattern of {pattern} ids does not fit {data_ids} data ids")
    generator = torch.Generator().manual_seed(seed)
    walk = torch.arange(length)

    def batch() -> SequenceBatch:
        starts = torch.randint(pattern, (batch_size, 1), generator=generator)
        rows = (starts + walk) % pattern + FIRST_DATA_ID  # (B, length)
        return SequenceBatch(None, rows.tolist())

    return (batch() for _ in range(steps))
