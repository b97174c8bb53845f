"""A placeholder for torch's compiler, which every optimiser imports and no lab model uses.

`torch._dynamo` has some 800 modules. Before its first step an optimiser imports them all, only to
mark places that a compiler must not touch. Those marks have no effect unless something is compiled.
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
    """`torch._dynamo` for code that only marks places; loads the real one as soon as more is used.

    It is also an import finder: an import of a module of the package loads the real package first.
    """

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(NAME, None)
        self.__spec__, self.__loader__, self.__file__ = spec, spec.loader, spec.origin
        self.__package__, self.__path__ = NAME, spec.submodule_search_locations or []
        self.marked: list[Callable[..., Any]] = []

    def graph_break(self, *args: Any, **named: Any) -> None:
        """Mark a place where compiled code would stop."""

    def disable(self, *args: Any, **named: Any) -> Any:
        """Return a function of torch unchanged; pass every other call to the real module."""
        if named.get("wrapping", True):
            return self.real().disable(*args, **named)
        self.marked.append(args[0])
        return args[0]

    def real(self) -> Any:
        """Import the real module, which replaces this one."""
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME], torch._dynamo
            for function in self.marked:  # they will ask the real one
                vars(function).pop("__dynamo_disable", None)
        found = importlib.import_module(NAME)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        return found

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the real module."""
        # Code that inspects all loaded modules reads such names; only `import *` needs `__all__`.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        return getattr(self.real(), name)

    def __dir__(self) -> list[str]:
        """Return the names in the real module."""
        return dir(self.real())

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Import the real package before a module of it; return the module if that loaded it."""
        if sys.modules.get(NAME) is not self or not name.startswith(f"{NAME}."):
            return None
        self.real()
        found = sys.modules.get(name)
        if found is None:
            return None
        # importlib uses the spec of the module that the package has loaded.
        spec = vars(found)["__spec__"] = ModuleSpec(name, AsItIs(found))
        return spec


class AsItIs(Loader):
    """A loader that returns a module which is loaded already."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """Return the module."""
        return self.module

    def exec_module(self, module: types.ModuleType) -> None:
        """Restore its own spec."""
        vars(module)["__spec__"] = self.spec


def leave_compiler() -> None:
    """Import the compiler only when it is used."""
    spec = PathFinder.find_spec(NAME, torch.__path__)
    if spec is None or NAME in sys.modules:
        return
    made = Compiler(spec)
    sys.modules[NAME] = torch._dynamo = made
    sys.meta_path.insert(0, made)
