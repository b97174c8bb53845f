"""Process trees: find the descendants of a process, and end all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from grader.sandbox import kernel

_PATIENCE_S = 5.0
_PAUSE_S = 0.001
_KILL = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL
_ENDED = ("", "Z", "X")
_AT_REST = (*_ENDED, "T", "t")
_CHILDREN = "/proc/{}/task/{}/children"


def protect_memory() -> None:
    """Hide this process's memory, environment and descriptors from others of the same user."""
    if sys.platform.startswith("linux"):
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def become_subreaper() -> None:
    """Adopt descendants of this process whose parent ends, so that none escapes."""
    if sys.platform.startswith("linux"):
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)


def children_of(pid: int) -> list[int]:
    """Return the children of a process, including those that ended but were not yet waited for."""
    if not os.path.exists(_CHILDREN.format(os.getpid(), os.getpid())):
        return _children_by_psutil(pid)
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(_CHILDREN.format(pid, thread), "rb") as file:
                found += map(int, file.read().split())
    return found


def _children_by_psutil(pid: int) -> list[int]:
    import psutil

    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def kill_tree(pid: int) -> None:
    """End a process and everything below it, whatever session it moved to.

    All of them are stopped first: a stopped process can neither fork nor lose a child to another
    parent. Call it before you wait for the process.
    """
    deadline = time.monotonic() + _PATIENCE_S
    below = _freeze(pid, deadline)
    while below:
        _kill_each(below, _KILL)
        if time.monotonic() > deadline:
            break
        time.sleep(_PAUSE_S)
        below = _living_below(pid)
    if sys.platform != "win32" and pid != os.getpgrp():
        with contextlib.suppress(OSError):
            os.killpg(pid, _KILL)
    _kill_each([pid], _KILL)


def _freeze(pid: int, deadline: float) -> list[int]:
    """Stop the whole tree; return what lives below `pid`."""
    before: list[int] | None = None
    while time.monotonic() < deadline:
        below = _living_below(pid)
        if sys.platform == "win32":
            return below
        moving = [p for p in (pid, *below) if _state(p) not in _AT_REST]
        # Whoever was still moving may have forked since its children were listed.
        if not moving and below == before:
            return below
        _kill_each(moving, signal.SIGSTOP)
        before = below
        if moving:
            time.sleep(_PAUSE_S)
    return _living_below(pid)


def _kill_each(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _living_below(pid: int) -> list[int]:
    """Return every process below `pid` that has not ended, parents before their children."""
    found = children_of(pid)
    for child in found:
        found += children_of(child)
    return [child for child in found if _state(child) not in _ENDED]


def _state(pid: int) -> str:
    """Return the letter of a process's state: T stopped, Z ended but not waited for, "" gone."""
    if not sys.platform.startswith("linux"):
        return _state_by_psutil(pid)
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name, in brackets, may hold anything, a bracket too.
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _state_by_psutil(pid: int) -> str:
    import psutil

    letters = {psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_STOPPED: "T"}
    try:
        return letters.get(psutil.Process(pid).status(), "R")
    except psutil.Error:
        return ""


def count_tasks(uid: int) -> int:
    """Return how many processes and threads run as this user."""
    total = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/status", "rb") as file:
                text = file.read()
            if int(text.partition(b"\nUid:")[2].split()[0]) == uid:
                total += int(text.partition(b"\nThreads:")[2].split()[0])
    return total
