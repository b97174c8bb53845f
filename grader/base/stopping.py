"""Signals that ask a command to end, and what they do to it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
# What has come to the command that runs now.
_HERE: list[list[int]] = []


@contextmanager
def stopping() -> Iterator[list[int]]:
    """Let a signal that asks to end do as Ctrl-C does, which clears up; yield which one came."""
    came: list[int] = []

    def stop(number: int, _: object) -> None:
        came.append(number)
        # Whoever asks twice must not break off the clearing up; at the third Ctrl-C it is meant.
        if len(came) == 1 or came.count(signal.SIGINT) > 2:
            raise KeyboardInterrupt

    here = threading.current_thread() is threading.main_thread()
    named = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    # What nohup has ignored stays ignored.
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
    """Tell whether a signal has asked this process to end; not every KeyboardInterrupt is one."""
    return any(_HERE)
