"""Storage for decoding one token at a time (given); task S1 is KVCache in kv_cache.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .kv_cache import KVCache


class Room:
    """Spare columns behind growing tensors, like those behind a Python list.

    Growing by one token then copies one token, not the whole past. Tensors handed out are views
    of the front of the storage. Only the newest view may grow in place: `used` tells.

    Args:
        held: The tensors to grow.
        dims: For each of them the axis that grows.
        capacity: Columns to make room for.
    """

    def __init__(self, held: Sequence[Tensor], dims: Sequence[int], capacity: int) -> None:
        self.dims = tuple(dims)
        self.capacity = capacity
        self.used = 0
        self.storage = []
        for tensor, dim in zip(held, dims, strict=True):
            shape = list(tensor.shape)
            shape[dim] = capacity
            self.storage.append(tensor.new_empty(shape))
        self.write(held)

    def write(self, new: Sequence[Tensor]) -> list[Tensor]:
        """Put new columns behind the used ones and return views of all that is held."""
        start = self.used
        self.used += new[0].shape[self.dims[0]]
        views = []
        for storage, tensor, dim in zip(self.storage, new, self.dims, strict=True):
            storage.narrow(dim, start, self.used - start).copy_(tensor)
            views.append(storage.narrow(dim, 0, self.used))
        return views


def extend(
    held: Sequence[Tensor],
    new: Sequence[Tensor],
    dims: Sequence[int],
    room: Room | None = None,
    capacity: int = 0,
) -> tuple[list[Tensor], Room | None]:
    """Join new columns to held ones without copying the held ones each time.

    Args:
        held: The tensors so far; they keep their values.
        new: What to join to each of them.
        dims: For each of them the axis that grows.
        room: The storage that holds them, from the call that made them.
        capacity: Columns to reserve when new storage is needed; at least doubled then.

    Returns:
        The joined tensors and the storage behind them.
    """
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*held, *new)):
        # Writing in place would overwrite what the backward pass still needs.
        joined = [torch.cat(pair, dim) for *pair, dim in zip(held, new, dims, strict=True)]
        return joined, None
    length = held[0].shape[dims[0]]
    needed = length + new[0].shape[dims[0]]
    if room is None or room.used != length or room.capacity < needed:
        room = Room(held, dims, max(capacity, needed, 2 * length))
    return room.write(new), room


class CacheSlot:
    """What one attention layer remembers; blocks hand it on, attention reads and refills it.

    Args:
        capacity: Positions to reserve room for.
    """

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity
        self.held: KVCache | None = None
        self.memory: CacheSlot | None = None

    @property
    def length(self) -> int:
        """Number of positions remembered."""
        return 0 if self.held is None else self.held.length


def memory_slot(cache: CacheSlot | None) -> CacheSlot | None:
    """Return the slot in which a decoder layer remembers the encoder's output, beside its own."""
    if cache is None:
        return None
    if cache.memory is None:
        cache.memory = CacheSlot()
    return cache.memory


class DecodingCache:
    """One slot per layer of a decoder.

    Args:
        num_layers: Layers of the decoder.
        capacity: Target positions to reserve room for; it grows beyond them when it must.
    """

    def __init__(self, num_layers: int, capacity: int = 0) -> None:
        self.slots = [CacheSlot(capacity) for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """Number of target positions remembered.

        Raises:
            ValueError: The layers remember different numbers.
        """
        lengths = [slot.length for slot in self.slots]
        if len(set(lengths)) > 1:
            raise ValueError(f"every layer must have cached the same length, got {lengths}")
        return lengths[0] if lengths else 0

    @property
    def elements(self) -> int:
        """Numbers held as keys and values of self-attention, all layers together."""
        caches = [slot.held for slot in self.slots if slot.held is not None]
        return sum(cache.key.numel() + cache.value.numel() for cache in caches)


def layer_slots(
    cache: DecodingCache | None, num_layers: int, offset: int
) -> Sequence[CacheSlot | None]:
    """Return what each layer is handed as its cache: its slot, or None when nothing is cached.

    Raises:
        ValueError: The cache has another number of layers, or does not end at offset.
    """
    if cache is None:
        cached = 0
        slots: Sequence[CacheSlot | None] = [None] * num_layers
    else:
        if len(cache.slots) != num_layers:
            raise ValueError(
                f"a cache of {len(cache.slots)} layers does not fit {num_layers} layers"
            )
        cached, slots = cache.length, cache.slots
    if offset != cached:
        raise ValueError(f"offset must be the cached length {cached}, got {offset}")
    return slots


@contextmanager
def kept_on_error(cache: DecodingCache | None) -> Iterator[None]:
    """Let a call that is refused half-way leave the cache as it found it.

    Args:
        cache: What the layers remember, or None.
    """
    slots = [] if cache is None else cache.slots
    slots = slots + [slot.memory for slot in slots if slot.memory is not None]
    before = [(slot, slot.held, slot.memory) for slot in slots]
    try:
        yield
    except BaseException:
        for slot, held, memory in before:
            slot.held, slot.memory = held, memory
        raise
