"""A stand-in for torch's compiler, which no lab model uses and every optimiser's step imports.

`torch._dynamo` is some 800 modules. Before its first step an optimiser imports them all, only to
mark places that a compiler must leave alone. Where nothing is compiled those marks mean nothing.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

import torch

NAME = "torch._dynamo"


class Compiler(types.ModuleType):
    """`torch._dynamo` for whoever only marks places; the real one as soon as more is wanted.

    It is a finder besides: whoever imports a module of the package imports the package first.
    """

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(NAME, None)
        self.__spec__, self.__loader__, self.__file__ = spec, spec.loader, spec.origin
        self.__package__, self.__path__ = NAME, spec.submodule_search_locations or []
        self.marked: list[Callable[..., Any]] = []

    def graph_break(self, *args: Any, **named: Any) -> None:
        """Mark a place where compiled code would stop."""

    def disable(self, *args: Any, **named: Any) -> Any:
        """Return a function of torch's own as it is; leave every other wish to the real one."""
        if named.get("wrapping", True):
            return self.real().disable(*args, **named)
        self.marked.append(args[0])
        return args[0]

    def real(self) -> Any:
        """Import the real module, which takes the place of this one."""
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME], torch._dynamo
            for function in self.marked:  # they will ask the real one
                vars(function).pop("__dynamo_disable", None)
        found = importlib.import_module(NAME)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        return found

    def __getattr__(self, name: str) -> Any:
        """Ask the real module."""
        # Whoever walks through all loaded modules asks for such names; only a star wants this one.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        return getattr(self.real(), name)

    def __dir__(self) -> list[str]:
        """Return what the real module holds."""
        return dir(self.real())

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Import the package before a module of it; return that module if it came along."""
        if sys.modules.get(NAME) is not self or not name.startswith(f"{NAME}."):
            return None
        self.real()
        found = sys.modules.get(name)
        if found is None:
            return None
        # importlib goes by the spec that stands in what came along with the package.
        spec = vars(found)["__spec__"] = ModuleSpec(name, AsItIs(found))
        return spec


class AsItIs(Loader):
    """A loader of a module that is loaded."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """Return the module."""
        return self.module

    def exec_module(self, module: types.ModuleType) -> None:
        """Give it back its own spec."""
        vars(module)["__spec__"] = self.spec


def leave_compiler() -> None:
    """Let the compiler be imported when it is used, and not before."""
    spec = PathFinder.find_spec(NAME, torch.__path__)
    if spec is None or NAME in sys.modules:
        return
    made = Compiler(spec)
    sys.modules[NAME] = torch._dynamo = made
    sys.meta_path.insert(0, made)
