"""Questions about modules: build one with given weights, run it, look inside (see probes.py)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from grader.probes import Refused, Session, attribute, default_dtype, encode, probe, watch


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
    # torch.manual_seed would also record, with a traceback, that accelerators are to be seeded.
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

    A call that names an `embedding_row` runs with another vector in that row. Returns the outputs,
    the outputs of the submodules named in `record` per call, the student's loss of each call that
    names `targets`, the tensor arguments that were changed in place, and whether the training mode
    was left as found.
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
    """Let one row of every token embedding hold `values` (D,) for a while."""
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
