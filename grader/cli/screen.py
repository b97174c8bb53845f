"""What `watch` shows on a terminal: one screen that is drawn anew, and keys without Enter."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from grader.report import checklist
from grader.report.checklist import Row

KEYS = "h hint   l list   r run again   c check all   n next   x reset   q quit"
FOLDED = ("done", "not started", "waits")
PAUSE_S = 0.05


def draw(
    found: Sequence[Row], focus: str, owed: Sequence[str], below: Sequence[RenderableType]
) -> Group:
    """Return the screen: all tasks in a few lines, then the one in `focus`, whole.

    Args:
        found: A row for each task that was checked.
        focus: The id of the task you are at.
        owed: Tasks that a save may have changed and that are not checked again yet: what is known
            of them is of a state that is gone.
        below: What stands under the task.
    """
    lines: list[RenderableType] = []
    again = [row for row in found if row.stub.id.split(".")[0] in owed]
    known = [row for row in found if row not in again]
    for word in FOLDED:
        ids = [row.stub.id for row in known if row.word[0] == word and row.stub.id != focus]
        if ids:
            lines.append(Text(f"{word + ':':13}{' '.join(ids)}", style="dim"))
    if again:
        ids = [row.stub.id for row in again]
        lines.append(Text(f"{'checking:':13}{' '.join(ids)}", style="dim"))
    for row in known:
        if row.word[0] not in FOLDED and row.stub.id != focus:
            text = f"{row.word[0] + ':':13}{row.stub.id} {', '.join(row.stub.functions)}"
            lines.append(Text(text, style=row.word[1], no_wrap=True, overflow="ellipsis"))
    for row in known:
        if row.stub.id == focus:
            lines += [Text(), Text(f"Task {focus} in {row.stub.file}", style="bold")]
            lines += checklist.row_lines(row, "")
            if row.done:
                lines.append(Text("Well done! n goes to the next task.", style="bold green"))
    return Group(*lines, *below, Text(KEYS, style="reverse"))


def focus_of(found: Sequence[Row], before: str, saved: Sequence[str]) -> str:
    """Return the id of the task to show: the one from before, unless you have moved on yourself.

    Args:
        found: A row for each task that was checked.
        before: The task that was shown, or "" at first.
        saved: The tasks of the files that you have just saved.
    """
    todo = [row for row in found if not row.done and not row.optional] or [*found]
    rows = {row.stub.id: row for row in found}
    if before not in rows:
        return todo[0].stub.id if todo else ""
    moved = bool(saved) and before.split(".")[0] not in saved
    own = [row for row in found if row.stub.id.split(".")[0] in saved and not row.done]
    if moved and own and rows[before].word[0] in FOLDED:
        return own[0].stub.id
    return before


def next_of(found: Sequence[Row], focus: str) -> str:
    """Return the id of the first task that is not done, or `focus` where all are."""
    todo = [row.stub.id for row in found if not row.done and not row.optional]
    later = [stub for stub in todo if stub != focus]
    return next(iter(later), focus) if focus in todo[:1] else next(iter(todo), focus)


@contextlib.contextmanager
def keys(press: Callable[[str], None]) -> Iterator[None]:
    """Call `press` from a thread with every key, until the block ends; q ends the program."""
    if not sys.stdin.isatty():
        yield
        return
    stop = threading.Event()
    read, restore = _reader()

    def listen() -> None:
        while not stop.is_set():
            key = read()
            if key == "q":
                signal.raise_signal(signal.SIGINT) if os.name == "nt" else os.kill(
                    os.getpid(), signal.SIGINT
                )
            elif key:
                press(key)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=1.0)
        restore()


def _reader() -> tuple[Callable[[], str], Callable[[], None]]:
    """Return what reads a key, "" where none came in time, and what puts the terminal back."""
    if sys.platform == "win32":
        import msvcrt

        def wait() -> str:
            if msvcrt.kbhit():
                return msvcrt.getwch()
            time.sleep(PAUSE_S)
            return ""

        return wait, lambda: None
    import select
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)

    def read() -> str:
        ready, _, _ = select.select([number], [], [], PAUSE_S)
        # An arrow key sends several characters at once: they are no key of ours.
        got = os.read(number, 16).decode("utf-8", errors="replace") if ready else ""
        return got if len(got) == 1 else ""

    return read, lambda: termios.tcsetattr(number, termios.TCSADRAIN, before)
