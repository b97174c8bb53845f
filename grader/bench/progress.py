"""How far the bench is: a bar in a terminal, a line per experiment elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from grader.bench.figure import Experiment, Result
from grader.bench.report import line


class Shown:
    """Watches a session and tells `console`."""

    def __init__(self, console: Console, total: int) -> None:
        """Expect `total` experiments."""
        self.console = console
        self.total = total
        self.number = 0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self.bar = Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True,
            disable=not console.is_terminal,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=None)

    def __enter__(self) -> Shown:
        """Show the bar."""
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        self.bar.stop()

    def start(self, experiment: Experiment) -> None:
        """Name the experiment."""
        self.number += 1
        head = f"[{self.number}/{self.total}] {experiment.name}"
        self.bar.reset(self.task, total=experiment.rounds, description=head.replace("[", r"\["))
        if not self.console.is_terminal:
            self._say(f"{head}: {experiment.sentence}")

    def advance(self, done: int) -> None:
        """Move the bar."""
        self.bar.update(self.task, completed=done)

    def end(self, results: Sequence[Result]) -> None:
        """Say what the figures of the experiment are, long before all are known."""
        for result in results:
            self._say(line(result))

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
