"""Synthetic sequences: copy, reverse, and a cyclic pattern.

Every dataset is a function of its arguments and its seed alone. Training and held-out rows never
share a sequence, whatever their seeds: the content of a sequence decides on which side it belongs
(in a cyclic pattern, its start).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

PAD = 0
BOS = 1
EOS = 2
FIRST_DATA_ID = 3

TASKS = ("copy", "reverse")
HELD_OUT_ONE_IN = 5
# Processors compute 8 numbers at a time: attention over 7 keys takes longer than over 8.
LANES = 8
# Where a length has fewer sequences than this, all of them belong to both sides.
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

    Where lengths differ, the sources are padded to a multiple of 8 columns.

    Args:
        task: "copy" or "reverse".
        steps: Number of batches, at least 1.
        batch_size: B, at least 1.
        seed: Decides everything that is random.
        vocab_size: V, above 3; the ids from 3 to V - 1 carry data.
        min_length: Length of the shortest sequence, at least 1.
        max_length: Length of the longest; all lengths between are about equally likely.
        held_out: Which of the two disjoint sides the sequences are drawn from.

    Raises:
        ValueError: An unknown task, a length, count or vocabulary out of range.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    _check_counts(steps=steps, batch_size=batch_size)
    if not 1 <= min_length <= max_length:
        raise ValueError(
            f"lengths must satisfy 1 <= min <= max, got min {min_length} and max {max_length}"
        )
    if vocab_size <= FIRST_DATA_ID:
        raise ValueError(
            f"vocab_size must be above {FIRST_DATA_ID}, the number of special ids, got {vocab_size}"
        )
    generator = torch.Generator().manual_seed(seed)
    direction = -1 if task == "reverse" else 1

    def batch() -> SequenceBatch:
        ids, lengths = _draw(batch_size, vocab_size, min_length, max_length, held_out, generator)
        rows = zip(ids.tolist(), lengths.tolist(), strict=True)
        answers = [row[:length][::direction] for row, length in rows]
        width = max(map(len, answers))
        source = ids[:, :width]
        if min_length < max_length:
            source = nn.functional.pad(source, (0, -width % LANES), value=PAD)
        return SequenceBatch(source, answers)

    # Unlike a generator function, this has already refused what cannot be drawn.
    return (batch() for _ in range(steps))


def cyclic_batches(
    *,
    steps: int,
    batch_size: int,
    seed: int,
    vocab_size: int = 16,
    pattern: int = 5,
    length: int = 12,
    held_out: bool | None = None,
) -> Iterator[SequenceBatch]:
    """Yield batches of rows that walk round a cycle of ids, each from its own start.

    With a pattern of 3 and a length of 5 the rows are 3 4 5 3 4, 4 5 3 4 5 and 5 3 4 5 3. There
    are only as many different rows as the pattern has ids.

    Args:
        steps: Number of batches, at least 1.
        batch_size: B, at least 1.
        seed: Decides the starts.
        vocab_size: V, at least 5; the pattern uses the ids from 3 on.
        pattern: Number of ids in the cycle, at least 2 and at most V - 3.
        length: Length of every row, at least 2: a row of one id walks nowhere.
        held_out: Which of two disjoint sets of starts the rows are drawn from; None = all starts.

    Raises:
        ValueError: A pattern, length or count out of range.
    """
    _check_counts(steps=steps, batch_size=batch_size)
    if length < 2:
        raise ValueError(f"a row must have a length of at least 2, got {length}")
    data_ids = max(0, vocab_size - FIRST_DATA_ID)
    if pattern < 2 or data_ids < 2:
        raise ValueError(
            f"a pattern must have at least 2 ids out of at least 2, got {pattern} out of {data_ids}"
        )
    if pattern > data_ids:
        raise ValueError(f"a pattern of {pattern} ids does not fit {data_ids} data ids")
    generator = torch.Generator().manual_seed(seed)
    walk = torch.arange(length)
    starts = torch.arange(pattern)
    if held_out is not None:
        apart = held_out_starts(pattern)
        starts = starts[torch.tensor([(start in apart) == held_out for start in range(pattern)])]

    def batch() -> SequenceBatch:
        drawn = starts[torch.randint(len(starts), (batch_size, 1), generator=generator)]
        rows = (drawn + walk) % pattern + FIRST_DATA_ID  # (B, length)
        return SequenceBatch(None, rows.tolist())

    return (batch() for _ in range(steps))


def held_out_starts(pattern: int) -> range:
    """Return the starts that training rows of a cyclic pattern never have: every fifth, or one.

    The ids behind such a start still follow one another in rows that start elsewhere, so the
    cycle can be learned; the row as a whole is new.

    Args:
        pattern: Number of ids in the cycle.
    """
    return range(min(HELD_OUT_ONE_IN, pattern) - 1, pattern, HELD_OUT_ONE_IN)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


def _draw(
    num_rows: int,
    vocab_size: int,
    min_length: int,
    max_length: int,
    held_out: bool,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Return ids (N, max_length), padded on the right, and their lengths (N,)."""
    columns = torch.arange(max_length)
    drawn: list[tuple[Tensor, Tensor]] = []
    missing = num_rows
    while missing > 0:
        # Rows of the other side are thrown away, so draw as many more as they are likely to be.
        draws = 16 + (missing * HELD_OUT_ONE_IN if held_out else missing * 3 // 2)
        lengths = torch.randint(min_length, max_length + 1, (draws,), generator=generator)
        ids = torch.randint(FIRST_DATA_ID, vocab_size, (draws, max_length), generator=generator)
        ids *= columns < lengths[:, None]
        kept = _belongs(ids, lengths, vocab_size, held_out).nonzero()[:missing, 0]
        drawn.append((ids[kept], lengths[kept]))
        missing -= len(kept)
    all_ids, all_lengths = zip(*drawn, strict=True)
    return torch.cat(all_ids), torch.cat(all_lengths)


def _belongs(ids: Tensor, lengths: Tensor, vocab_size: int, held_out: bool) -> Tensor:
    """Tell which rows of ids (N, S) belong to the wanted side, (N,) bool."""
    # A hash of the content: products of 64-bit integers wrap around, and the shifts bring the
    # high bits down again. Padding is 0 and adds nothing, however wide the batch is.
    factors = torch.arange(1, ids.shape[1] + 1) * 0x5851F42D4C957F2D + 0x14057B7EF767814F
    code = (ids * factors).sum(dim=1)
    code = (code ^ (code >> 32)) * 0x2545F4914F6CDD1D
    code = code ^ (code >> 29)
    is_held_out = code % HELD_OUT_ONE_IN == 0
    num_sequences = float(vocab_size - FIRST_DATA_ID) ** lengths
    return (num_sequences < SMALLEST_DIVIDED_SPACE) | (is_held_out == held_out)
