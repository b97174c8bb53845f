"""Questions about modules: build one with given weights, run it, look inside (see toolkit.py)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from grader.probes.toolkit import Refused, Session, attribute, default_dtype, encode, probe, watch


@probe
def build(
    session: Session,
    save: str,
    target: str,
    args: list[Any],
    kwargs: dict[str, Any],
    weights: dict[str, Tensor] | None = None,
    seed: int = 0,
    dtype: str = "float64",
    scale: dict[str, float] | None = None,
) -> dict[str, Any]:
    """Construct a module, load `weights` into it by name, and list its parameters.

    A tree whose parameter names or shapes differ from the weights is refused with
    `constructor_changed`; `scale` multiplies parameters whose name matches a pattern.
    """
    # torch.manual_seed would also prepare to seed accelerators, and record a traceback for that.
    torch.default_generator.manual_seed(seed)
    with default_dtype(dtype):
        module = attribute(target)(*args, **kwargs).to(getattr(torch, dtype))
    own = {name: list(p.shape) for name, p in module.named_parameters()}
    if weights is not None:
        _load(module, weights)
    for pattern, factor in (scale or {}).items():
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if re.search(pattern, name):
                    parameter.mul_(factor)
    session.handles[save] = module
    return {"parameters": own}


def _load(module: nn.Module, weights: dict[str, Tensor]) -> None:
    own = dict(module.named_parameters())
    wanted = {name: list(value.shape) for name, value in weights.items()}
    found = {name: list(value.shape) for name, value in own.items()}
    for name in list(wanted) + [name for name in found if name not in wanted]:
        if wanted.get(name) != found.get(name):
            detail = {"name": name, "expected": wanted.get(name), "found": found.get(name)}
            raise Refused("constructor_changed", f"parameter {name} differs", detail)
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(value)


@probe
def forward(
    session: Session,
    model: str,
    calls: list[dict[str, Any]],
    method: str | None = None,
    mode: str = "eval",
    record: list[str] | None = None,
    dtype: str = "float64",
) -> dict[str, Any]:
    """Run the model on each of `calls` without gradients.

    A call with an `embedding_row` runs with another vector in that row. Returns the outputs, the
    outputs of the submodules named in `record` per call, the student's loss of each call with
    `targets`, the tensor arguments that were changed in place, and whether the training mode is
    unchanged.
    """
    module = session.get(model)
    module.train(mode == "train")
    function = getattr(module, method) if method else module
    outputs, records, losses = [], [], []
    touched: list[str] = []
    with torch.no_grad(), default_dtype(dtype):
        for one in calls:
            args, kwargs = one.get("args", []), one.get("kwargs", {})
            changed = watch(args, kwargs)
            row, values = one.get("embedding_row", (None, None))
            with recording(module, record or []) as seen, overwritten(module, row, values):
                outputs.append(function(*args, **kwargs))
            records.append(seen)
            touched += changed()
            if "targets" in one:
                loss = attribute("training.masked_cross_entropy")
                losses.append(loss(logits_in(outputs[-1]), one["targets"], pad_id=0))
    kept = module.training == (mode == "train")
    return {
        "outputs": [encode(output, ours=False) for output in outputs],
        "records": records,
        "losses": losses,
        "inputs_changed": touched,
        "mode_kept": kept,
    }


def logits_in(value: Any) -> Tensor:
    """Return the first three-dimensional tensor in what a model returned."""
    inner = list(value.values()) if isinstance(value, dict) else value
    if isinstance(inner, (list, tuple)):
        inner = next((v for v in inner if isinstance(v, Tensor) and v.ndim == 3), inner)
    if not isinstance(inner, Tensor):
        raise Refused("no_tensor", f"the model returned {type(value).__name__}, not logits")
    return inner


@contextlib.contextmanager
def overwritten(module: nn.Module, row: int | None, values: Tensor | None) -> Iterator[None]:
    """Put `values` (D,) into one row of every token embedding, and restore it at the end."""
    before = []
    if row is not None and values is not None:
        for name, parameter in module.named_parameters():
            if "embedding" in name and parameter.ndim == 2 and parameter.shape[1] == len(values):
                before.append((parameter, parameter[row].clone()))
                parameter[row] = values.to(parameter.dtype)
    try:
        yield
    finally:
        for parameter, kept in before:
            parameter[row] = kept


@contextlib.contextmanager
def recording(module: nn.Module, names: list[str]) -> Iterator[dict[str, Any]]:
    """Collect the first tensor that each named submodule returns."""
    seen: dict[str, Any] = {}
    hooks = []
    inner = dict(module.named_modules()) if names else {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            while isinstance(output, (tuple, list)) and output:
                output = output[0]
            if isinstance(output, Tensor):
                seen[name] = output.detach()

        return hook

    for name in names:
        if name in inner:
            hooks.append(inner[name].register_forward_hook(keep(name)))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@probe
def dropout(session: Session, save: str, rate: float) -> None:
    """Save an active dropout layer; with a rate of 1 it returns 0 and nothing is random."""
    session.handles[save] = nn.Dropout(rate).train()


@probe
def fields(session: Session, handle: str, names: list[str]) -> dict[str, Any]:
    """Return the named attributes of a saved object, None for a missing one."""
    value = session.get(handle)
    return {"values": [getattr(value, name, None) for name in names]}


@probe
def parameters(session: Session, handle: str) -> dict[str, Any]:
    """Return the parameters of a saved module by name."""
    return {"parameters": dict(session.get(handle).named_parameters())}


@dataclass
class Past:
    """Takes the place of keys and values in a cache, so that no stretch task is needed."""

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
    """Run a saved block or stack whose named modules return their input, and record what they get.

    With an offset it also gets a cache that holds this many positions, with one slot per layer of a
    stack (0 = a block). Returns the keywords of every call in order; a cache is given by its name.
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
    """Return the cache of a block, or of a stack with `layers` layers; add its parts to `names`."""
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
