"""The questions a worker can answer about the mounted tree.

A probe is a function of the worker's session and plain arguments. It runs in the same process as
the student's code, so its answers cannot be trusted more than that code: it never judges.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grader.link import frames

PACKAGE = "transformer"
Probe = Callable[..., Any]
PROBES: dict[str, Probe] = {}


class Refused(Exception):
    """A probe that could not ask its question; `kind` names why in one word."""

    def __init__(self, kind: str, message: str, detail: Any = None) -> None:
        """Keep `kind` and `detail` for the referee."""
        super().__init__(message)
        self.kind = kind
        self.detail = detail


class Session:
    """What a worker remembers between questions: objects the referee refers to by a handle."""

    def __init__(self, channel: frames.Channel) -> None:
        """Remember the channel, which streaming probes use."""
        self.channel = channel
        self.handles: dict[str, Any] = {}

    def get(self, handle: str) -> Any:
        """Return the object behind `handle`."""
        if handle not in self.handles:
            raise Refused("no_handle", f"nothing is called {handle}")
        return self.handles[handle]


def probe(function: Probe) -> Probe:
    """Register `function` under its own name."""
    PROBES[function.__name__] = function
    return function


def run(session: Session, name: str, arguments: dict[str, Any]) -> Any:
    """Run the probe called `name` and return its answer as plain values and arrays."""
    torch.set_num_threads(1)  # the submission may have set more, which slows down other workers
    value = PROBES[name](session, **decode(session, arguments))
    return encode(value)


def decode(session: Session, value: Any) -> Any:
    """Turn a referee's plain tree into what the student's code expects."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, list):
        return [decode(session, v) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (key, inner), *_ = value.items()
        if key == "$handle":
            return session.get(inner)
        if key == "$config":
            return attribute("config.ModelConfig")(**inner)
        if key == "$recipe":
            return attribute("config.TrainingRecipe")(**inner)
        if key == "$batch":
            return attribute("data.SequenceBatch")(**decode(session, inner))
        if key == "$linear":
            matrix = torch.from_numpy(inner.copy())
            return lambda x: x @ matrix
        if key == "$tuple":
            return tuple(decode(session, inner))
    return {k: decode(session, v) for k, v in value.items()}


def encode(value: Any, ours: bool = True) -> Any:
    """Turn an answer into plain values and arrays.

    Args:
        value: The answer, or a part of it.
        ours: False for what the student's code returned, where an array is no tensor.
    """
    if isinstance(value, Tensor):
        return to_array(value)
    if isinstance(value, np.ndarray) and not ours:
        return {"$object": "NumPy array"}
    if isinstance(value, dict):
        return {str(k): encode(v, ours) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(v, ours) for v in value]
    if value is None or isinstance(value, (bool, int, float, str, np.ndarray)):
        return value
    return {"$object": type(value).__name__[:100]}


def to_array(value: Tensor) -> np.ndarray:
    """Return a plain copy of `value` without graph, subclass or shared storage."""
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        plain = value.as_subclass(Tensor).detach().to("cpu")
        if plain.dtype in (torch.bfloat16, torch.float16):
            plain = plain.float()
        return plain.resolve_conj().resolve_neg().contiguous().numpy().copy()


def attribute(path: str) -> Any:
    """Import and return `transformer.<path>`, such as `masks.causal_mask`.

    Raises:
        Refused: the module has no such name (`missing_name`).
    """
    module_name, _, rest = path.partition(".")
    value = importlib.import_module(f"{PACKAGE}.{module_name}")
    for name in rest.split(".") if rest else []:
        if not hasattr(value, name):
            detail = {"file": f"{module_name}.py", "name": rest}
            raise Refused("missing_name", f"{module_name}.py has no {rest}", detail)
        value = getattr(value, name)
    return value


@contextlib.contextmanager
def default_dtype(name: str) -> Iterator[None]:
    """Make `name` torch's default floating type inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, name))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@probe
def names(session: Session, modules: list[str]) -> dict[str, str]:
    """Import the modules and return the file of each."""
    found = {}
    for module in modules:
        importlib.import_module(f"{PACKAGE}.{module}")
        found[module] = str(getattr(sys.modules[f"{PACKAGE}.{module}"], "__file__", ""))
    return found


@probe
def call(
    session: Session,
    target: str,
    args: list[Any],
    kwargs: dict[str, Any],
    save: str | None = None,
    dtype: str = "float64",
    give: bool = True,
) -> Any:
    """Call `module.name`, or `@handle` / `@handle.method`, and return what it returns.

    `inputs_changed` lists the positions and names of tensor arguments it changed in place.
    """
    if target.startswith("@"):
        handle, _, method = target[1:].partition(".")
        function = session.get(handle)
        function = getattr(function, method) if method else function
    else:
        function = attribute(target)
    changed = watch(args, kwargs)
    with default_dtype(dtype):
        value = function(*args, **kwargs)
    if save is not None:
        session.handles[save] = value
    return {"value": encode(value, ours=False) if give else None, "inputs_changed": changed()}


def watch(args: list[Any], kwargs: dict[str, Any]) -> Callable[[], list[str]]:
    """Copy the tensors among the arguments; the returned function names those changed since."""
    tensors = {str(i): a for i, a in enumerate(args) if isinstance(a, Tensor)}
    tensors |= {k: a for k, a in kwargs.items() if isinstance(a, Tensor)}
    before = {k: a.clone() for k, a in tensors.items()}
    return lambda: [k for k, a in tensors.items() if not _same(a, before[k])]


def _same(a: Tensor, b: Tensor) -> bool:
    # NaN, which equals nothing, is the rare case.
    return torch.equal(a, b) or (
        a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
    )
