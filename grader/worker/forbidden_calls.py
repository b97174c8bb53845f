"""The watch: notes every call of what the lab forbids, however the submission came by it.

Torch's attention in Python (a few functions and classes) is watched in its own code, so that every
name it goes by leads past the watch; everything else ends in an operator of torch's dispatcher,
where the watch is the kernel that calls the real one. Nothing else is touched: other operators cost
what they always cost. A watched call goes on as usual; the referee is told what was called and
from which lines.

All of this stands beside the student's code, which could undo it. So what was seen is kept in
closures alone, which nothing a program can name leads to; whoever looks for them among the
interpreter's objects and frames, or replaces what the watch stands on, is noted, too.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import json
import os
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import grader
from grader.base.forbidden import (
    FORBIDDEN,
    HARMLESS_OPERATORS,
    MODULES,
    PUBLIC_NAMES,
    TELLING_EVENTS,
)
from grader.link import frames

Json = dict[str, Any]
Arm = Callable[[str], None]
Tell = Callable[[], Json]
Saw = Callable[..., None]

# Torch's name for the one kernel that some operators have for every kind of tensor; vmap has its
# own besides.
COMPOSITE = "CompositeImplicitAutograd"
KEYS = ("CPU", "CUDA", "NestedTensorCPU", "FuncTorchVmapMode", "FuncTorchBatched")
SAMPLE = ("aten::scaled_dot_product_attention", "FuncTorchBatched")  # a kernel that is ours only
EVENTS = tuple(TELLING_EVENTS)
MOST_SIGHTINGS, MOST_FRAMES, MOST_AT_ONCE = 500, 20, 50
# What the way from a sighting to the referee stands on.
GROUND = (builtins, json, frames)

_ready: list[tuple[Arm, Tell]] = []


def install() -> None:
    """Put the watch on torch, once in a process and before any code of a submission."""
    saw, arm, tell = _made()
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced is the purpose
        for operator in torch._C._dispatch_get_all_op_names():
            space, _, name = operator.partition("::")
            word = name.partition(".")[0]
            if space == "aten" and FORBIDDEN.fullmatch(word):
                if not HARMLESS_OPERATORS.fullmatch(word):
                    _watch_operator(library, operator, word, saw)
    _watch_modules(saw, set())
    _watch_function(torch._ops.HigherOrderOperator.__call__, partial(_saw_higher_order, saw))
    # The kernels last as long as the library.
    _ready.append((arm, lambda: tell() if library else {}))


def take() -> tuple[Arm, Tell]:
    """Hand over the watch, once, and hide this module.

    Returns:
        Two functions: one sees calls from now on and names the lines of a tree; the other returns
        what is new since the last time, as a frame holds it, or nothing.
    """
    sys.modules.pop(__name__, None)
    vars(grader).pop("forbidden_calls", None)
    return _ready.pop()


def forbidden_functions(module: types.ModuleType) -> Iterator[tuple[Any, str, Any, str]]:
    """Yield each forbidden function of a module: its owner, name, itself, and what a student reads.

    Of a class these are all that it defines: what runs it may have any name.
    """
    shown = re.sub(r"\.modules\.\w+", "", module.__name__)
    for name, value in list(vars(module).items()):
        title = PUBLIC_NAMES.get(name, f"{shown}.{name}")
        if not MODULES[module.__name__].fullmatch(name):
            continue
        if isinstance(value, type):
            for method, function in list(vars(value).items()):
                if isinstance(function, types.FunctionType):
                    yield value, method, function, title
        else:
            function = getattr(value, "_init_fn", value)  # of an operator that is made in Python
            if isinstance(function, types.FunctionType):
                yield module, name, function, title


def _watch_modules(saw: Saw, known: set[str]) -> None:
    """Watch the modules with forbidden functions that are loaded and were not before."""
    for path in MODULES.keys() - known:
        if path in sys.modules:
            known.add(path)
            for *_, function, title in forbidden_functions(sys.modules[path]):
                _watch_function(function, partial(saw, title))


def _watch_operator(library: Any, operator: str, word: str, saw: Saw) -> None:
    title = PUBLIC_NAMES.get(word, f"torch.ops.aten.{word}")
    kernels = {}
    for key in KEYS:
        with contextlib.suppress(RuntimeError):  # it has no kernel for this key
            kernels[key] = torch.library.get_kernel(operator, key)
    if torch._C._dispatch_has_kernel_for_dispatch_key(operator, COMPOSITE):
        own = {key: kernel for key, kernel in kernels.items() if key.startswith("Func")}
        kernels = {COMPOSITE: kernels["CPU"], **own}

    def passing(kernel: Any) -> Callable[..., Any]:
        def watched(keys: Any, *args: Any, **named: Any) -> Any:
            saw(title)
            return kernel.call_boxed(keys, *args, **named)

        return watched

    for key, kernel in kernels.items():
        library.impl(operator, passing(kernel), key, with_keyset=True)


def _watch_function(function: Any, saw: Saw) -> None:
    """Let a function tell before it runs, whatever name it is called by."""
    code = function.__code__
    original = types.FunctionType(
        code, function.__globals__, code.co_name, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__

    def watched(*args: Any, **named: Any) -> Any:
        saw(*args)
        return original(*args, **named)

    constants = tuple(watched if c == "the watch" else c for c in _door.__code__.co_consts)
    function.__code__ = _door.__code__.replace(
        co_consts=constants, co_freevars=code.co_freevars, co_name=code.co_name
    )
    function.__defaults__ = function.__kwdefaults__ = None


def _door(*args: Any, **named: Any) -> Any:
    """Stand in for a watched function: its copies call what takes the constant's place."""
    call: Any = "the watch"
    return call(*args, **named)


def _saw_higher_order(saw: Saw, operator: Any, *_: Any) -> None:
    name = operator.name()
    if FORBIDDEN.fullmatch(name) and not HARMLESS_OPERATORS.fullmatch(name):
        saw(PUBLIC_NAMES.get(name, f"torch.ops.higher_order.{name}"))


def _made() -> tuple[Saw, Arm, Tell]:
    """Return the functions that note a call, begin, and tell; only they know what was seen."""
    roots: list[str] = []
    calls: dict[object, Json] = {}
    oddities: dict[object, Json] = {}
    unplaced: dict[str, bool] = {}  # calls whose lines are not known, or not yet
    busy: list[bool] = []
    watched = {path for path in MODULES if path in sys.modules}
    places = [
        (vars(owner), name, vars(owner)[name])
        for path in watched
        for owner, name, *_ in forbidden_functions(sys.modules[path])
    ]
    places += [(vars(m), name, value) for m in GROUND for name, value in vars(m).items()]

    def inside(path: str) -> str:
        """Return a file's path from the tree's root on, nothing for a file of somebody else."""
        root = next(filter(path.startswith, roots), None)
        return path[len(root) :] if root else ""

    def lines_of(frame: types.FrameType | None) -> Iterator[Json]:
        """Yield the submission's own lines that are under way in this thread, innermost first."""
        while frame is not None:
            file = inside(frame.f_code.co_filename)
            if file:
                yield {"file": file, "line": frame.f_lineno}
            frame = frame.f_back

    def making(owner: Any) -> Iterator[Json]:
        """Yield where the submission defines the class of `owner`, if it does: there it is made."""
        for kind in type(owner).__mro__ if isinstance(owner, torch.nn.Module) else ():
            module = sys.modules.get(kind.__module__)
            file = inside(getattr(module, "__file__", None) or "")
            if file:
                line = 1
                with contextlib.suppress(Exception):  # a class that no source line shows
                    line = inspect.getsourcelines(kind)[1]
                yield {"file": file, "line": line}
                return

    def saw(title: str, owner: Any = None, *_: Any) -> None:
        """Note a call of what is forbidden; `owner` is the object whose method it is."""
        if not roots:
            return
        # First without any help: what follows fails where somebody has bent Python itself.
        known = unplaced.pop(title, False)
        unplaced[title] = True
        busy.append(True)
        try:
            lines = [*making(owner), *lines_of(sys._getframe(1))]
        finally:
            busy.pop()
        key = tuple(dict.fromkeys(line["file"] for line in lines))
        if key and (key in calls or len(calls) < MOST_SIGHTINGS):
            calls.setdefault(key, {"name": title, "frames": lines[:MOST_FRAMES]})
            if not known:
                del unplaced[title]

    def heard(event: str, _: Any) -> None:
        """Note an event that Python reports, when a line of the submission is its cause."""
        if busy or not event.startswith(EVENTS):
            return
        busy.append(True)  # to look at frames is such an event itself
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == "<string>":
            frame = frame.f_back
        file = inside(frame.f_code.co_filename) if frame else ""
        if frame and file and len(oddities) < MOST_SIGHTINGS:
            found = {"event": event, "file": file, "line": frame.f_lineno}
            oddities.setdefault((event, file, frame.f_lineno), found)
        busy.pop()

    def arm(tree: str) -> None:
        if not roots:
            roots.extend({path + os.sep for path in (tree, os.path.realpath(tree))})
            sys.addaudithook(heard)

    def tell() -> Json:
        _watch_modules(saw, watched)
        whole = torch._C._dispatch_has_kernel_for_dispatch_key(*SAMPLE)
        for where, name, value in places:
            if where.get(name) is not value:
                whole = False
        if not whole:
            oddities.setdefault("watch", {"event": "watch", "file": "", "line": 0})
        found: Json = {}
        for kind, seen in (("calls", calls), ("oddities", oddities)):
            new = [each for each in seen.values() if "told" not in each][:MOST_AT_ONCE]
            found |= {kind: [dict(each) for each in new]} if new else {}
            for each in new:
                each["told"] = True
        if unplaced:
            found["calls"] = found.get("calls", [])
            found["calls"] += [{"name": title, "frames": []} for title in unplaced]
            unplaced.clear()
        return {"sightings": found} if found else {}

    return saw, arm, tell
