"""Find where a worker's code was when it gave no answer, from what Python writes into its log.

A worker can lie about it, as about anything: the result only shows the student a place to look at,
and changes no verdict.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

from grader.base.settings import task_files
from grader.base.student_error import task_file
from grader.link.launchers import LogDrain

SAY_S = 1.0  # a worker that has not answered by then will not answer
PAUSES = (0.011, 0.029, 0.053, 0.017, 0.037)  # seconds; irregular, so no loop stays in step
LARGEST = 1 << 20  # bytes of a file that is read for its loops
MOST = 6  # calls that a report shows

LOOPS = (ast.While, ast.For, ast.AsyncFor)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_HEAD = "(most recent call first):\n"
_FRAME = re.compile(r'  File "([^"\n]{1,4000})", line (\d{1,7}) in ([^\n]{1,200})\n')
# The list of calls ends at the worker's first line, or where Python cuts it off.
_WHOLE = re.compile(r'zygote\.py", line \d{1,7} in <module>\n|\n  \.\.\.\n')
# The lines of a dump, for those who want all the others.
_DUMP = re.compile(
    r"(Fatal Python error: |(Current t|T)hread |Stack \(most|Extension modules: |Segmentation )"
    r'|  File "[^"\n]{1,4000}", line \d{1,7} in |  \.\.\.$|  <no Python frame>'
)
_CAUGHT = re.compile(r"SigCgt:\s*([0-9a-f]{1,32})")


def without_dumps(log: str) -> str:
    """Return what a worker's log holds besides the places where its code was."""
    return "".join(line for line in log.splitlines(keepends=True) if not _DUMP.match(line))


class Frame(NamedTuple):
    """One call under way: the file, counted from the tree, the line and the function."""

    file: str
    line: int
    function: str


class Whereabouts:
    """Asks one worker where its code is."""

    def __init__(self, pid: int, log: LogDrain, tree: Path) -> None:
        """Watch the worker `pid`, which mounts `tree`."""
        self.pid = pid
        self.log = log
        self.tree = tree

    def importing(self) -> str:
        """Return the student's file that is being imported now, or an empty text."""
        files = [f.file for f in self._look() if f.function == "<module>"]
        return files[-1] if files else ""

    def stuck(self) -> list[dict[str, Any]]:
        """Return the calls down to the endless loop, or down to where all looks agree."""
        looks = [self._look()]
        for pause in PAUSES:
            if looks[-1]:
                time.sleep(pause)
                looks.append(self._look())
        return described(narrowed([x for x in looks if x], cache(self._nodes)))

    def crashed(self) -> list[dict[str, Any]]:
        """Return the calls in which an ended worker crashed, if Python could still print them."""
        _, fatal, said = self.log.text().rpartition("Fatal Python error:")
        return described(self._frames(said)) if fatal else []

    def _look(self) -> list[Frame]:
        """Ask once; return the active calls in files of the tree, outermost first."""
        if sys.platform == "win32" or not self._listens():
            return []
        heard = self.log.hear()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGUSR1)
            deadline = time.monotonic() + SAY_S
            while time.monotonic() < deadline:
                time.sleep(0.002)
                said = heard.decode("utf-8", errors="replace")
                if _WHOLE.search(said):
                    return self._frames(said)
        return []

    def _listens(self) -> bool:
        """Tell whether the signal has a handler; without one it would kill the worker."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return not sys.platform.startswith("linux")
        caught = _CAUGHT.search(status)
        return caught is not None and bool(int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1)

    def _frames(self, said: str) -> list[Frame]:
        calls = _FRAME.findall(said.partition(_HEAD)[2])
        roots = {str(self.tree) + os.sep, os.path.realpath(self.tree) + os.sep}
        found = [
            Frame(name[len(root) :].replace(os.sep, "/"), int(line), function)
            for name, line, function in reversed(calls)
            for root in roots
            if name.startswith(root)
        ]
        return [frame for frame in found if self._is_there(frame.file)]

    def _is_there(self, file: str) -> bool:
        """Tell whether the tree really holds this file: the log can name any."""
        try:
            real = os.path.realpath(self.tree / file)
            inside = real == os.path.join(os.path.realpath(self.tree), *file.split("/"))
            return inside and S_ISREG(os.lstat(real).st_mode)
        except (OSError, ValueError):
            return False

    def _nodes(self, file: str) -> list[ast.stmt]:
        """Return the loops and functions of a file of the tree, outer ones first."""
        # A worker without isolation could have put a link or a pipe here.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            with open(os.open(self.tree / file, flags), "rb") as source:
                tree = ast.parse(source.read(LARGEST))
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return []
        return [node for node in ast.walk(tree) if isinstance(node, (*LOOPS, *FUNCTIONS))]


def narrowed(looks: Sequence[list[Frame]], nodes: Callable[[str], list[ast.stmt]]) -> list[Frame]:
    """Return the calls down to the one that does not end.

    That is the innermost call in a `while` of a task file that all looks show. If there is none, it
    is the call where nothing moves, or else the innermost call in any loop. The answer does not
    depend on the moment: if a call is at another line in each look, the line of its loop is
    returned, or else that of its function.

    Args:
        looks: the active calls at several moments, outermost first.
        nodes: the loops and functions of a file, outer ones first.
    """
    found = []
    endless = looping = 0
    for frames in zip(*looks, strict=False):
        file, line, function = frames[0]
        if len({(f.file, f.function) for f in frames}) > 1:
            break
        lines = {f.line for f in frames}
        inside = _inside(function, lines, nodes(file))
        loops = [n for n in inside if isinstance(n, LOOPS)]
        whiles = [n for n in loops if isinstance(n, ast.While)]
        if loops or len(lines) > 1:
            line = next((n.lineno for n in [*whiles, *loops, *inside]), min(lines))
        found.append(Frame(file, line, function))
        if whiles and task_file(file) in task_files():
            endless = len(found)
        if loops:
            looping = len(found)
    still = all(look == looks[0] for look in looks)
    return found[: endless or (not still and looping) or None]


def _inside(function: str, lines: set[int], nodes: list[ast.stmt]) -> list[ast.stmt]:
    """Return the nodes around all these lines that belong to a call of this function."""
    around = [n for n in nodes if n.lineno <= min(lines) and max(lines) <= (n.end_lineno or 0)]
    homes = [n for n in around if isinstance(n, FUNCTIONS) and _said(n.name) == function]
    if not homes:  # A lambda or comprehension; the function around it belongs to another call.
        return around if function == "<module>" else []
    return around[around.index(homes[-1]) :]


def _said(name: str) -> str:
    """Return a name as Python writes it in its list of calls."""
    return name.encode("ascii", "backslashreplace").decode()


def described(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    """Return the last calls in the form in which a worker describes an error."""
    last = frames[-MOST:]
    return [{"file": f.file, "line": f.line, "function": f.function, "text": ""} for f in last]
