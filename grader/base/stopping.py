"""Signals that ask a command to end, and what they do to it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
# The signals that the running command has received.
_HERE: list[list[int]] = []


@contextmanager
def stopping() -> Iterator[list[int]]:
    """Let signals that ask to end act like Ctrl-C, which cleans up; yield those received."""
    came: list[int] = []

    def stop(number: int, _: object) -> None:
        came.append(number)
        # A second signal must not interrupt the clean-up; a third Ctrl-C may.
        if len(came) == 1 or came.count(signal.SIGINT) > 2:
            raise KeyboardInterrupt

    here = threading.current_thread() is threading.main_thread()
    named = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    # A signal that nohup ignores stays ignored.
    usual = (signal.SIG_DFL, signal.default_int_handler)
    before = {n: signal.getsignal(n) for n in named if here and signal.getsignal(n) in usual}
    for number in before:
        signal.signal(number, stop)
    _HERE.append(came)
    try:
        yield came
    finally:
        _HERE.pop()
        for number, handler in before.items():
            signal.signal(number, handler)


def asked() -> bool:
    """Tell whether a signal asked this process to end; KeyboardInterrupt has other causes too."""
    return any(_HERE)
