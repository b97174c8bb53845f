"""A stand-in for torch's compiler, which no lab model uses and every optimiser's step imports.

`torch._dynamo` is some 800 modules. Before its first step an optimiser imports them all, only to
mark places that a compiler must leave alone. Where nothing is compiled those marks mean nothing.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import torch

NAME = "torch._dynamo"


class Compiler(types.ModuleType):
    """`torch._dynamo` for whoever only marks places; the real one as soon as more is wanted."""

    def graph_break(self, msg: str = "") -> None:
        """Mark a place where compiled code would stop."""

    def disable(self, fn: Any = None, recursive: bool = True, **named: Any) -> Any:
        """Return `fn`, or without it a decorator that does."""
        return (lambda later: later) if fn is None else fn

    def __getattr__(self, name: str) -> Any:
        """Import the real module and ask that."""
        # Whoever walks through all loaded modules asks for these.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME], torch._dynamo
        return getattr(importlib.import_module(NAME), name)


def leave_compiler() -> None:
    """Let the compiler be imported when it is used, and not before."""
    if NAME not in sys.modules:
        sys.modules[NAME] = torch._dynamo = Compiler(NAME)
