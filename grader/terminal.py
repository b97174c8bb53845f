"""What a person reads in the terminal: live lines while checks run, then the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import rich.progress
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from grader.problems import flags, place_of, problems, to_write
from grader.result import clean_text
from grader.witness import brief, cut

MARKS = {
    "passed": ("ok", "green"),
    "failed": ("wrong", "red"),
    "not_implemented": ("to do", "yellow"),
    "blocked": ("waits", "dim"),
    "error": ("raised", "red"),
    "timeout": ("too slow", "red"),
    "out_of_memory": ("memory", "red"),
    "crashed": ("crashed", "red"),
    "protocol": ("protocol", "red"),
    "grader_error": ("OUR FAULT", "magenta"),
}

# Longer sentences stand whole below the tables.
SUMMARY = 240


class Progress:
    """Shows what runs now; one plain line per finished check when there is no terminal."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        """Write to `console`."""
        self.console = console
        self.quiet = quiet
        self.bars: Bars | None = None
        self.checks = 0
        self.ended = 0
        self.title = ""
        self.pace = Pace()

    def __enter__(self) -> Progress:
        """Start the bars where there is a terminal."""
        if self.console.is_terminal and not self.quiet:
            self.bars = Bars(self.console)
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bars away."""
        if self.bars:
            self.bars.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        """Take one event of the run."""
        if self.quiet:
            return
        if event["kind"] == "plan":
            self.checks = event["checks"]
        elif event["kind"] == "start":
            self.title = clean_text(event["title"])
            self.pace = Pace()
            self._show()
        elif event["kind"] == "progress":
            self._progress(event)
        elif event["kind"] == "end":
            self.ended += 1
            self._show()
            if self.bars is None:
                outcome = event["outcome"]
                name = outcome.stub or outcome.gate
                self._line(f"{MARKS[str(outcome.status)][0]:>9}  {name}  {event['title']}")

    def _show(self) -> None:
        if self.bars:
            self.bars.show_checks(self.title, self.ended, self.checks)

    def _progress(self, event: dict[str, Any]) -> None:
        done, total = event["done"], event["total"]
        figures: dict[str, float] = {k: event[k] for k in ("loss", "accuracy") if k in event}
        words = self.pace.words(done, total, event.get("what", "steps"), figures)
        if self.bars:
            self.bars.show_steps(words, done, total)
        elif self.pace.is_due(done, total):
            self._line(f"           {words}")

    def _line(self, text: str) -> None:
        self.console.print(Text(clean_text(text)), soft_wrap=True)


class Pace:
    """How fast long work goes, and when a plain line about it is due."""

    LINES = 5

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock."""
        self.clock = clock
        self.began = clock()
        self.said = 0

    def words(self, done: int, total: int, what: str, figures: Mapping[str, float]) -> str:
        """Return "60/300 training steps, loss 0.41, accuracy 0.87, 12 s left"."""
        words = [f"{done}/{total} {what}"]
        words += [f"{name} {value:.3g}" for name, value in figures.items()]
        if 0 < done < total:
            words.append(f"{(self.clock() - self.began) / done * (total - done):.0f} s left")
        return ", ".join(words)

    def is_due(self, done: int, total: int) -> bool:
        """Tell whether another fifth of the work is done."""
        before, self.said = self.said, done * self.LINES // max(total, 1)
        return self.said > before


class Bars:
    """Two bars at the foot of a terminal: the checks, and the steps of the one that runs."""

    NARROW = 60

    def __init__(self, console: Console) -> None:
        """Draw on `console`; a narrow one gets no bars, only words."""
        text = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True,
                          overflow="ellipsis"), markup=False)  # fmt: skip
        bar = [BarColumn(bar_width=20)] if console.width >= self.NARROW else []
        self.progress = rich.progress.Progress(
            SpinnerColumn("line"), *bar, text, console=console, transient=True, expand=True
        )
        self.checks = self.progress.add_task("starting", total=None)
        self.steps = self.progress.add_task("", total=None, visible=False)

    def start(self) -> None:
        """Begin to draw."""
        self.progress.start()

    def stop(self) -> None:
        """Take the bars away."""
        self.progress.stop()

    def show_checks(self, title: str, done: int, total: int) -> None:
        """Show which check runs."""
        count = f"{done}/{total}  " if total else ""
        self.progress.update(
            self.checks, description=f"{count}{title}", completed=done, total=total or None
        )
        self.progress.update(self.steps, visible=False)

    def show_steps(self, words: str, done: int, total: int) -> None:
        """Show how far long work is."""
        self.progress.update(
            self.steps, description=words, completed=done, total=total, visible=True
        )


class Trimmed:
    """Rows one below the other; in a file, without the spaces that tables put at line ends."""

    def __init__(self, *rows: RenderableType) -> None:
        """Hold the rows."""
        self.rows = Group(*rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what rich prints."""
        if console.is_terminal:
            yield self.rows
            return
        for line in console.render_lines(self.rows, options, pad=False):
            yield Segment("".join(segment.text for segment in line).rstrip())
            yield Segment.line()


def verdict(tree: Mapping[str, Any], folder: Path) -> Trimmed:
    """Return the verdict of a `results.json` tree in `folder`, as something rich can print."""
    rows: list[Any] = [_heading(tree), Text()]
    said: dict[str, str] = {}
    rows.append(_table("Parts", tree["parts"], said))
    rows.append(_table("Gates", tree["gates"], said))
    tried = [e for e in tree["stretch"] if e["status"] not in ("not_implemented", "blocked")]
    if tried:
        rows.append(_table("Stretch (scored apart)", tried, said))
    if "scale" in tree:
        rows.append(_table("Larger size (no points)", tree["scale"], said))
    rows += _problems(tree)
    rows += [Text(f"note: {clean_text(n)}", style="dim") for n in tree["submission"]["notes"]]
    for flag in flags(tree):
        rows.append(Text(f"for a person to read: {clean_text(flag['message'])}", style="yellow"))
    if not tree["isolation"]["contained"]:
        rows.append(
            Text(
                "note: on this machine the submission could read files; "
                "do not grade strangers' code here.",
                style="yellow",
            )
        )
    rows += [Text(), _sentence(tree)]
    for what, file in (("report", "report.html"), ("all figures", "results.json")):
        rows.append(Text(f"{what}: {folder / file}", style="dim", overflow="fold"))
    return Trimmed(*rows)


def _heading(tree: Mapping[str, Any]) -> Text:
    name = clean_text(tree["submission"]["name"])
    return Text(f"{name}: {tree['isolation']['level']} isolation", style="bold")


def _table(title: str, entries: list[dict[str, Any]], said: dict[str, str]) -> Group:
    """Return the rows of `entries`; a long summary that was `said` of another is not repeated."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for number, item in enumerate(entries, 1):
        word, style = MARKS[item["status"]]
        summary = cut(item["summary"].split("\n")[0], SUMMARY)
        if item["evidence"].get("built_on"):
            summary = f"builds on task {item['evidence']['built_on']}, which does not pass"
        elif item["status"] in ("failed", "error"):
            first = said.setdefault(summary, item["name"])
            summary = summary if first == item["name"] else f"as {first}"
        table.add_row(
            item.get("task", str(number)),
            item["name"],
            Text(word, style=style),
            f"{item['score']}/{item['max_score']}",
            Text(summary, overflow="fold"),
        )
    return Group(Text(title, style="bold"), Padding(table, (0, 0, 1, 2)))


def _problems(tree: Mapping[str, Any]) -> list[Any]:
    """Return each cause once, with all the places that showed it, and what to look at."""
    entries = [*tree["parts"], *tree["gates"], *tree.get("scale", [])]
    checks = [(place_of(e, c), c) for e in entries for c in e["checks"] if c["diagnosis"]]
    rows: list[Any] = []
    for problem in problems(checks):
        rows.append(Text(f"{problem.where}: {brief(problem.cause)}", style="red"))
        rows.append(Padding(Text(f"look at {problem.file}: {brief(problem.advice)}"), (0, 0, 1, 4)))
    return rows


def _sentence(tree: Mapping[str, Any]) -> Text:
    if tree["grader_error"]:
        return Text(
            f"The grader failed, not the submission; no score. {tree['grader_error']}",
            style="magenta",
        )
    score = f"{tree['score']} of {tree['max_score']} points"
    if tree["passed"]:
        return Text(f"Passed with {score}: every part and all four gates.", style="bold green")
    todo = to_write(tree)
    if todo:
        return Text(f"{score}. {todo}", style="bold")
    if tree["gates_passed"]:
        return Text(f"{score}. All four gates passed; a part is still wrong.", style="bold")
    return Text(f"{score}. Not passed yet.", style="bold")
