"""Everything random in a check: ids, lengths, weights and held-out rows, all from one seed.

Numbers are made of random bits by single arithmetic operations, and weights are exact float32
numbers, so a draw is the same on every machine and in both precisions.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from grader.model.parameters import Shapes

PAD, BOS, EOS = 0, 1, 2
FIRST_DATA_ID = 3
ROWS_AT_LONGEST = 4

Array = NDArray[np.float64]
Ids = NDArray[np.int64]
Weights = dict[str, Array]
Row = tuple[int, ...]


class Draws:
    """Random draws that depend only on a seed and a name, not on other draws."""

    def __init__(self, seed: int | str, name: str) -> None:
        """Start the stream that belongs to this seed and name."""
        self._seed, self._name = seed, name
        digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
        self._random = np.random.default_rng(int.from_bytes(digest, "little"))

    def child(self, name: str) -> Draws:
        """Return another stream, for a part of the purpose of this one."""
        return Draws(self._seed, f"{self._name}/{name}")

    def uniform(self, shape: tuple[int, ...], low: float, high: float) -> Array:
        """Float32 numbers between low and high, as float64."""
        numbers = self._random.random(shape) * (high - low) + low
        return numbers.astype(np.float32).astype(np.float64)

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> Ids:
        """Integers in [low, high)."""
        return self._random.integers(low, high, size=shape, dtype=np.int64)

    def lengths(self, rows: int, shortest: int, longest: int) -> Ids:
        """Lengths of a batch, (B,); the longest and, if B > 1, the shortest always occur."""
        lengths = self.integers((rows,), shortest, longest + 1)
        lengths[-1:] = shortest
        lengths[0] = longest
        return self._random.permutation(lengths)

    def ids(
        self, lengths: Sequence[int] | Ids, vocab_size: int, first_id: int = FIRST_DATA_ID
    ) -> Ids:
        """Rows of token ids of the given lengths, padded on the right.

        Args:
            lengths: Real tokens of each of the B rows.
            vocab_size: Ids are below it.
            first_id: Ids are not below it; with BOS they include BOS and EOS.

        Returns:
            (B, max(lengths)).
        """
        ids = self.integers((len(lengths), max(lengths)), first_id, vocab_size)
        ids[np.arange(ids.shape[1]) >= np.asarray(lengths)[:, None]] = PAD
        return ids

    def other_ids(self, ids: Ids, vocab_size: int, first_id: int = BOS) -> Ids:
        """Another real id at every real position of ids (B, T); padding is unchanged."""
        step = self.integers(ids.shape, 1, vocab_size - first_id)
        others = first_id + (ids - first_id + step) % (vocab_size - first_id)
        return np.where(ids == PAD, PAD, others)

    def weights(self, shapes: Shapes) -> Weights:
        """Weights at ordinary scale: every module maps numbers around 1 to numbers around 1.

        Norms scale by 0.75 to 1.25, biases lie within 0.25, matrices and embeddings have a
        standard deviation of 1 / sqrt(columns). Each depends on its name only.
        """
        return {name: self.child(name)._weight(name, shape) for name, shape in shapes.items()}

    def _weight(self, name: str, shape: tuple[int, ...]) -> Array:
        if len(shape) == 1:
            centre = 1.0 if name.endswith("weight") else 0.0
            return self.uniform(shape, centre - 0.25, centre + 0.25)
        bound = math.sqrt(3.0 / shape[1])  # a uniform number has variance bound^2 / 3
        return self.uniform(shape, -bound, bound)

    def permutation_of_data_ids(self, vocab_size: int) -> Ids:
        """A new id for every id, (V,): data ids are permuted; PAD, BOS and EOS stay."""
        if vocab_size < FIRST_DATA_ID + 2:
            raise ValueError(f"vocab_size must be at least {FIRST_DATA_ID + 2}, got {vocab_size}")
        permuted = np.arange(vocab_size)
        while np.array_equal(permuted, np.arange(vocab_size)):
            permuted[FIRST_DATA_ID:] = self._random.permutation(permuted[FIRST_DATA_ID:])
        return permuted

    def rows(
        self,
        count: int,
        shortest: int,
        longest: int,
        vocab_size: int,
        *,
        exclude: Collection[Row] = (),
        unique: bool = False,
    ) -> list[Row]:
        """Rows of data ids of mixed lengths; a few always have the greatest length.

        Args:
            count: Number of rows.
            shortest: Least length.
            longest: Greatest length.
            vocab_size: Ids are below it.
            exclude: Rows that must not occur.
            unique: No two rows are alike.

        Raises:
            ValueError: There are not that many different rows.
        """
        refused = set(exclude)
        _check_enough_rows(count if unique else 1, shortest, longest, vocab_size, len(refused))
        accepted: list[Row] = []
        while len(accepted) < count:
            lengths = self.integers((count,), shortest, longest + 1)
            lengths[:ROWS_AT_LONGEST] = longest
            ids = self.integers((count, longest), FIRST_DATA_ID, vocab_size)
            for length, row in zip(lengths.tolist(), ids.tolist(), strict=True):
                candidate = tuple(row[:length])
                if len(accepted) < count and candidate not in refused:
                    accepted.append(candidate)
                    if unique:
                        refused.add(candidate)
        order = self._random.permutation(count)
        return [accepted[index] for index in order]


def _check_enough_rows(
    count: int, shortest: int, longest: int, vocab_size: int, num_excluded: int
) -> None:
    num_ids = vocab_size - FIRST_DATA_ID
    possible = sum(num_ids**length for length in range(shortest, longest + 1))
    if possible - num_excluded < count:
        raise ValueError(
            f"{count} different rows wanted, but {num_ids} ids at lengths {shortest} to {longest} "
            f"make {possible}, of which {num_excluded} are excluded"
        )


def sharpened(weights: Mapping[str, Array], factors: Mapping[str, float]) -> Weights:
    """Multiply the attention scores of some modules: scale their query and key projections.

    Args:
        weights: Weights of the model.
        factors: The factor for the scores of each attention, by module name (the oracle's
            `<module>_sharpening`); an attention that is not inside a model is called "".

    Returns:
        New weights; all but those projections are the given ones.
    """
    scaled = dict(weights)
    for attention, factor in factors.items():
        prefix = f"{attention}." if attention else ""
        for name in weights:
            if name.startswith((f"{prefix}q_proj.", f"{prefix}k_proj.")):
                product = weights[name] * math.sqrt(factor)
                scaled[name] = product.astype(np.float32).astype(np.float64)
    return scaled
