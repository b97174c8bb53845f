"""Task S1: the keys and values that one attention layer remembers while tokens are written."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .cache import Room, extend


@dataclass(frozen=True)
class KVCache:
    """Keys and values of the tokens that one layer has already seen. It never changes.

    Args:
        key: (B, H_kv, T, K) float, rotated already where positions are rotary.
        value: (B, H_kv, T, K) float.
        valid: (B, T) bool, True = real token.
        capacity: Columns to reserve when it first grows.
        room: The storage behind the three tensors; leave it to append.

    Raises:
        TypeError: valid is not bool.
        ValueError: Shapes that disagree.
    """

    key: Tensor
    value: Tensor
    valid: Tensor
    capacity: int = 0
    room: Room | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.valid.dtype != torch.bool:
            raise TypeError(f"valid must be bool (True = real token), got {self.valid.dtype}")
        if self.key.dim() != 4 or self.value.shape != self.key.shape:
            raise ValueError(
                "key and value must have one shape (B, H_kv, T, K), "
                f"got {tuple(self.key.shape)} and {tuple(self.value.shape)}"
            )
        batch, _, length, _ = self.key.shape
        if self.valid.shape != (batch, length):
            raise ValueError(
                f"valid must have shape (B, T) = {(batch, length)}, got {tuple(self.valid.shape)}"
            )

    @property
    def length(self) -> int:
        """T, number of positions held."""
        return self.key.shape[2]

    def append(self, key: Tensor, value: Tensor, valid: Tensor) -> KVCache:
        """Return a cache that holds the new positions behind the present ones.

        Args:
            key: (B, H_kv, N, K) float.
            value: (B, H_kv, N, K) float.
            valid: (B, N) bool, True = real token.

        Returns:
            A KVCache of length T + N; this one keeps its contents.

        Raises:
            ValueError: Another batch size, number of heads or width.

        Task S1. Hints:
            1. KVCache(key, value, valid) already checks the new positions among themselves; whether
               they go with the held ones (B, H_kv, K) is yours to check.
            2. torch.cat along the time axis is right. Which axis is that in each tensor?
            3. extend (given, cache.py) does the same without copying the past every time.
        """
        # BEGIN SOLUTION S1
        new = KVCache(key, value, valid)
        held, came = self.key.shape, new.key.shape
        if (held[0], held[1], held[3]) != (came[0], came[1], came[3]):
            raise ValueError(
                f"new keys must have shape {(held[0], held[1], 'N', held[3])}, got {tuple(came)}"
            )
        (key, value, valid), room = extend(
            (self.key, self.value, self.valid),
            (new.key, new.value, new.valid),
            (2, 2, 1),
            self.room,
            self.capacity,
        )
        return KVCache(key, value, valid, self.capacity, room)
        # END SOLUTION
