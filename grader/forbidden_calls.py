"""The watch: notes every call of what the lab forbids, however the submission came by it.

Torch's attention in Python (a few functions and classes) is watched in its own code, so that every
name it goes by leads past the watch; everything else ends in an operator of torch's dispatcher,
where the watch is the kernel that calls the real one. Nothing else is touched: other operators cost
what they always cost. A watched call goes on as usual; the referee is told what was called and
from which lines.

It runs beside the student's code, so it can be undone from there. It notes that, too.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from grader.forbidden import (
    FORBIDDEN,
    HARMLESS_OPERATORS,
    METHODS,
    MODULES,
    PUBLIC_NAMES,
    TELLING_EVENTS,
)

# The alias key comes first: what has one kernel for everything needs no other but those of vmap.
COMPOSITE = "CompositeImplicitAutograd"
KEYS = ("CPU", "CUDA", "NestedTensorCPU", "FuncTorchVmapMode", "FuncTorchBatched")
EVENTS = tuple(TELLING_EVENTS)
SAMPLE = "aten::scaled_dot_product_attention"
MOST_SIGHTINGS, MOST_FRAMES, MOST_AT_ONCE = 500, 20, 50

Json = dict[str, Any]


class Watch:
    """What one process has seen of forbidden calls and of attempts to look around the watch."""

    def __init__(self) -> None:
        """See nothing until `arm`."""
        self.roots: tuple[str, ...] = ()
        self.busy = False
        self.calls: dict[object, Json] = {}
        self.oddities: dict[object, Json] = {}
        self.places: list[tuple[Any, str, Any]] = []
        self.library: Any = None

    # Setting it -----------------------------------------------------------------------------

    def install(self) -> None:
        """Put the watch on torch, once in a process and before any code of a submission."""
        self.library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that kernels are replaced is the purpose
            for operator in torch._C._dispatch_get_all_op_names():
                space, _, name = operator.partition("::")
                word = name.partition(".")[0]
                if space == "aten" and FORBIDDEN.fullmatch(word):
                    if not HARMLESS_OPERATORS.fullmatch(word):
                        self._watch_operator(operator, word)
        for owner, name, title in forbidden_functions():
            self._watch_function(owner, name, partial(self.saw, title))
        self._watch_function(torch._ops.HigherOrderOperator, "__call__", self._saw_higher_order)

    def _watch_operator(self, operator: str, word: str) -> None:
        title = PUBLIC_NAMES.get(word, f"torch.ops.aten.{word}")
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        found = []
        for key in KEYS:
            with contextlib.suppress(RuntimeError):  # it has no kernel for this key
                found.append((key, torch.library.get_kernel(operator, key)))
        if has(operator, COMPOSITE):
            kernels = dict(found)
            found = [(COMPOSITE, kernels["CPU"])]
            found += [(key, kernel) for key, kernel in kernels.items() if key.startswith("Func")]
        for key, kernel in found:
            self.library.impl(operator, self._passing(title, kernel), key, with_keyset=True)

    def _passing(self, title: str, kernel: Any) -> Callable[..., Any]:
        def watched(keys: Any, *args: Any, **named: Any) -> Any:
            self.saw(title)
            return kernel.call_boxed(keys, *args, **named)

        return watched

    def _watch_function(self, owner: Any, name: str, tell: Callable[..., object]) -> None:
        """Let a function tell before it runs, whatever name it is called by."""
        function = vars(owner)[name]
        code = function.__code__
        original = types.FunctionType(
            code, function.__globals__, name, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__

        def watched(*args: Any, **named: Any) -> Any:
            tell(*args)
            return original(*args, **named)

        constants = tuple(watched if c == "the watch" else c for c in _door.__code__.co_consts)
        function.__code__ = _door.__code__.replace(
            co_consts=constants, co_freevars=code.co_freevars, co_name=code.co_name
        )
        function.__defaults__ = function.__kwdefaults__ = None
        self.places.append((owner, name, function))

    def arm(self, tree: str) -> None:
        """See calls from now on, and name the lines of `tree` that they come from."""
        if not self.roots:
            self.roots = tuple({path + os.sep for path in (tree, os.path.realpath(tree))})
            sys.addaudithook(self._heard)

    def _inside(self, path: str) -> str:
        """Return a file's path from the tree's root on, nothing for a file of somebody else."""
        root = next(filter(path.startswith, self.roots), None)
        return path[len(root) :] if root else ""

    # Seeing ---------------------------------------------------------------------------------

    def saw(self, title: str, owner: Any = None, *_: Any) -> None:
        """Note a call of what is forbidden; `owner` is the object whose method it is."""
        if not self.roots:
            return
        self.busy = True
        frames = [*self._made_by(owner), *self._frames(sys._getframe(1))]
        self.busy = False
        key = tuple(dict.fromkeys(frame["file"] for frame in frames))
        if len(self.calls) >= MOST_SIGHTINGS and key not in self.calls:
            self.calls.pop((), None)  # too many to tell apart: it is told again without a place
            key, frames = (), []
        self.calls.setdefault(key, {"name": title, "frames": frames[:MOST_FRAMES]})

    def _saw_higher_order(self, operator: Any, *_: Any) -> None:
        name = operator.name()
        if FORBIDDEN.fullmatch(name) and not HARMLESS_OPERATORS.fullmatch(name):
            self.saw(PUBLIC_NAMES.get(name, f"torch.ops.higher_order.{name}"))

    def _made_by(self, owner: Any) -> Iterator[Json]:
        """Yield where the submission defines the class of `owner`, if it does: there it is made."""
        for kind in type(owner).__mro__ if isinstance(owner, torch.nn.Module) else ():
            module = sys.modules.get(kind.__module__)
            file = self._inside(getattr(module, "__file__", None) or "")
            if file:
                line = 1
                with contextlib.suppress(Exception):  # a class that no source line shows
                    line = inspect.getsourcelines(kind)[1]
                yield {"file": file, "line": line}
                return

    def _frames(self, frame: types.FrameType | None) -> Iterator[Json]:
        """Yield the submission's own lines that are under way in this thread, innermost first."""
        while frame is not None:
            file = self._inside(frame.f_code.co_filename)
            if file:
                yield {"file": file, "line": frame.f_lineno}
            frame = frame.f_back

    def _heard(self, event: str, _: Any) -> None:
        """Note an event that Python reports, when a line of the submission is its cause."""
        if self.busy or not event.startswith(EVENTS):
            return
        self.busy = True  # looking at frames is such an event itself
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == "<string>":
            frame = frame.f_back
        file = self._inside(frame.f_code.co_filename) if frame else ""
        if frame and file:
            self._note(event, file, frame.f_lineno)
        self.busy = False

    def _note(self, event: str, file: str, line: int) -> None:
        if len(self.oddities) < MOST_SIGHTINGS:
            found = {"event": event, "file": file, "line": line}
            self.oddities.setdefault((event, file, line), found)

    # Telling --------------------------------------------------------------------------------

    def sightings(self) -> Json:
        """Return what is new since the last time, as a frame holds it; nothing where nothing is."""
        if self.roots and not self._whole():
            self._note("watch", "", 0)
        found: Json = {}
        for key, seen in (("calls", self.calls), ("oddities", self.oddities)):
            new = [sighting for sighting in seen.values() if "told" not in sighting]
            new = new[:MOST_AT_ONCE]
            if new:
                found[key] = [dict(sighting) for sighting in new]
            for sighting in new:
                sighting["told"] = True
        return {"sightings": found} if found else {}

    def _whole(self) -> bool:
        """Tell whether everything that `install` set is still there."""
        return torch._C._dispatch_has_kernel_for_dispatch_key(SAMPLE, KEYS[-1]) and all(
            vars(owner).get(name) is function for owner, name, function in self.places
        )


def _door(*args: Any, **named: Any) -> Any:
    """Stand in for a watched function: its copies call what takes the constant's place."""
    call: Any = "the watch"
    return call(*args, **named)


def forbidden_functions() -> Iterator[tuple[Any, str, str]]:
    """Yield the owner and name of every forbidden function in Python, and what a student reads."""
    for path in MODULES:
        module = sys.modules[path]
        shown = path if path == "torch.nn.functional" else "torch.nn"
        for name, value in vars(module).items():
            if not FORBIDDEN.fullmatch(name) or getattr(value, "__module__", "") != path:
                continue
            if isinstance(value, type):
                own = [method for method in METHODS if method in vars(value)]
                yield from ((value, method, f"{shown}.{name}") for method in own)
            elif isinstance(value, types.FunctionType):
                yield module, name, f"{shown}.{name}"


WATCH = Watch()
