"""Process trees: who descends from whom, and how to end all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from grader.sandbox import kernel

_PATIENCE_S = 5.0
_PAUSE_S = 0.001
_CHILDREN = "/proc/{}/task/{}/children"


def protect_memory() -> None:
    """Close this process's memory, environment and descriptors to others of the same user."""
    if sys.platform.startswith("linux"):
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def become_subreaper() -> None:
    """Adopt what descends from this process when its own parent ends, so that nothing escapes."""
    if sys.platform.startswith("linux"):
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)


def children_of(pid: int) -> list[int]:
    """Return the children of a process, those that ended but are not yet buried included."""
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

    The process is stopped first and killed last: until then it can neither fork nor, when it is a
    subreaper, lose a descendant to another parent. To be called before the process is buried.
    """
    if sys.platform == "win32":
        _kill_each([*_living_below(pid), pid], signal.SIGTERM)
        return
    _kill_each([pid], signal.SIGSTOP)
    deadline = time.monotonic() + _PATIENCE_S
    while living := _living_below(pid):
        _kill_each(living, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(_PAUSE_S)
    with contextlib.suppress(OSError):
        if pid != os.getpgrp():
            os.killpg(pid, signal.SIGKILL)
    _kill_each([pid], signal.SIGKILL)


def _kill_each(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _living_below(pid: int) -> list[int]:
    """Return every living process below `pid`, children before their own children."""
    found = children_of(pid)
    for child in found:
        found += children_of(child)
    return [child for child in found if not _ended(child)]


def _ended(pid: int) -> bool:
    """Tell whether a process waits only to be buried."""
    if not sys.platform.startswith("linux"):
        return _ended_by_psutil(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in brackets, may hold anything, a bracket too.
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return True


def _ended_by_psutil(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


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
