"""How far a batch is: done, throughput, time left; a bar on a terminal, else a line for each."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from grader.batch.loop import Heard
from grader.collect.model import one_line


class Shown:
    """Listens to the loop and shows it on standard error."""

    def __init__(self, total: int, *, quiet: bool = False, console: Console | None = None) -> None:
        """Expect `total` submissions."""
        self.console = console or Console(stderr=True, highlight=False)
        self.total = total
        self.quiet = quiet
        self.done = 0
        self.graded = 0
        self.began = time.monotonic()
        columns = (TextColumn("grading"), BarColumn(), MofNCompleteColumn(),
                   TextColumn("{task.description}"))  # fmt: skip
        bar = self.console.is_terminal and not quiet
        self.progress = Progress(*columns, console=self.console, transient=True, disable=not bar)
        self.bar = self.progress.add_task("", total=total)

    def __enter__(self) -> Shown:
        """Begin."""
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        self.progress.stop()

    def __call__(self, heard: Heard) -> None:
        """Take note of one submission."""
        self.done += 1
        if heard.graded:
            self.graded += 1
        pace = self.pace()
        self.progress.update(self.bar, advance=1, description=pace)
        if self.quiet or (self.console.is_terminal and heard.row["status"] != "grader_error"):
            return
        if heard.graded or heard.row["status"] not in ("passed", "not_passed"):
            row = heard.row
            score = "" if row["score"] is None else f", {row['score']} of {row['max_score']}"
            why = f": {one_line(row['cause'])[:160]}" if row["score"] is None else ""
            line = f"{self.done}/{self.total} {heard.name}: {row['status']}{score}{why}; {pace}"
            self.console.print(Text(line), soft_wrap=True)

    def pace(self) -> str:
        """Return throughput and time left, as far as they are known."""
        if not self.graded:
            return "none graded yet"
        taken = max(time.monotonic() - self.began, 1e-9)
        # What is known already took no time: only what was graded tells how fast it goes.
        left = (self.total - self.done) * taken / self.graded
        return f"{60 * self.graded / taken:.1f} a minute, {clock(left)} left"


def clock(seconds: float) -> str:
    """Return "1:05:09" or "5:09"."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
