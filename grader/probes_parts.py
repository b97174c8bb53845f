"""Questions that only the checks of parts ask (see probes.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from grader.probes import Session, attribute, default_dtype, encode, probe


@probe
def dropout(session: Session, save: str, rate: float) -> None:
    """Save an active dropout layer; with a rate of 1 it answers 0 and nothing is random."""
    session.handles[save] = nn.Dropout(rate).train()


@probe
def fields(session: Session, handle: str, names: list[str]) -> dict[str, Any]:
    """Return the named attributes of a saved object, None for one that it has not."""
    value = session.get(handle)
    return {"values": [getattr(value, name, None) for name in names]}


@probe
def parameters(session: Session, handle: str) -> dict[str, Any]:
    """Return the parameters of a saved module by name."""
    return {"parameters": dict(session.get(handle).named_parameters())}


@dataclass
class Past:
    """Stands for keys and values that a cache holds; no code of the stretch tasks is needed."""

    length: int


@probe
def handed_on(
    session: Session,
    handle: str,
    inside: list[str],
    args: list[Any],
    kwargs: dict[str, Any],
    offset: int,
    layers: int,
    dtype: str = "float64",
) -> dict[str, Any]:
    """Run a saved block or stack whose named modules return their input, and see what they got.

    With an offset it also gets a cache that holds so many positions, of as many layers as a stack
    has (0 = a block). Returns the keywords of every call in order; of a cache the name.
    """
    module = session.get(handle)
    caches: dict[int, str] = {}
    if offset:
        kwargs = kwargs | {"offset": offset, "cache": make_cache(offset, layers, caches)}
    calls: list[dict[str, Any]] = []
    inner = {name: m for name, m in module.named_modules() if name in inside}

    def seeing(name: str) -> Callable[..., Any]:
        def forward(*given: Any, **named: Any) -> Any:
            seen = {k: caches.get(id(v), encode(v, ours=False)) for k, v in named.items()}
            calls.append({"name": name, "given": seen})
            return next((v for v in (*given, *named.values()) if isinstance(v, Tensor)), None)

        return forward

    for name, one in inner.items():
        one.forward = seeing(name)
    try:
        with torch.no_grad(), default_dtype(dtype):
            module.eval()(*args, **kwargs)
    finally:
        for one in inner.values():
            del one.forward
    return {"calls": calls}


def make_cache(length: int, layers: int, names: dict[int, str]) -> Any:
    """Return the cache of a block, or of a stack of so many layers; note the names of its parts."""
    if layers:
        cache = attribute("cache.DecodingCache")(layers)
        slots = list(cache.slots)
    else:
        cache = attribute("cache.CacheSlot")()
        slots = [cache]
    for number, slot in enumerate(slots):
        slot.held = Past(length)
        names[id(slot)] = f"slot {number}"
        names[id(attribute("cache.memory_slot")(slot))] = f"memory slot {number}"
    names.setdefault(id(cache), "cache")
    return cache
