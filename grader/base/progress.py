"""The progress of a long command: a bar on a terminal, elsewhere a line every 30 seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

SECONDS_BETWEEN_LINES = 30.0
T = TypeVar("T")


class Shown:
    """Counts what is done out of a known total, and shows the pace and the time left."""

    def __init__(self, label: str, total: int, console: Console, *, quiet: bool = False) -> None:
        """Expect `total` items, called `label`; `quiet` = show nothing."""
        self.label, self.total, self.console, self.quiet = label, total, console, quiet
        self.done = 0
        self.worked = 0
        self.began = self.said = time.monotonic()
        self.bar = Progress(
            TextColumn(label), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"),
            console=console, transient=True, disable=quiet or not console.is_terminal,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=total)

    def __enter__(self) -> Shown:
        """Begin."""
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self.bar.stop()

    def step(self, *, worked: bool = True) -> None:
        """Count one more; `worked` = it took real work, so it counts for the pace."""
        self.done += 1
        self.worked += worked
        self.bar.update(self.task, advance=1, description=self.pace())

    def tick(self) -> None:
        """Print the progress if there is no bar and nothing was printed for a while."""
        if not self.console.is_terminal and time.monotonic() - self.said > SECONDS_BETWEEN_LINES:
            self.say(f"{self.label}: {self.done} of {self.total}, {self.pace()}")

    def say(self, line: str, style: str = "") -> None:
        """Print a line, above the bar if there is one."""
        self.said = time.monotonic()
        if not self.quiet:
            self.console.print(Text(line, style=style), soft_wrap=True)

    def pace(self) -> str:
        """Return items per minute and the time left, once they are known."""
        if not self.worked:
            return "none yet"
        taken = max(time.monotonic() - self.began, 1e-9)
        left = (self.total - self.done) * taken / self.worked
        return f"{60 * self.worked / taken:.1f} a minute, {clock(left)} left"


def shown(items: Iterable[T], label: str, total: int, console: Console) -> Iterator[T]:
    """Yield the items, and show how many of `total` are done."""
    with Shown(label, total, console) as progress:
        for item in items:
            yield item
            progress.step()
            progress.tick()


def clock(seconds: float) -> str:
    """Return "1:05:09" or "5:09"."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
