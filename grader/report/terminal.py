"""What a person reads in the terminal: live lines while checks run, then the verdict."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rich.progress
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from grader.base.result import clean_text
from grader.base.text import all_of
from grader.report.problems import flags, place_of, problems, why_not_passed
from grader.report.witness import brief, cut

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
# Without a terminal, long work is told in so many lines.
LINES = 5
# A terminal of fewer columns has room for words only.
NARROW = 60


class Progress:
    """Shows what runs now; one plain line per finished check when there is no terminal."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        """Write to `console`: two bars at its foot, for the checks and for what one is at."""
        self.console = console
        self.quiet = quiet
        words = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True,
                           overflow="ellipsis"), markup=False)  # fmt: skip
        bar = [BarColumn(bar_width=20)] if console.width >= NARROW else []
        self.bars = rich.progress.Progress(
            SpinnerColumn("line"), *bar, words, console=console, transient=True, expand=True,
            disable=quiet or not console.is_terminal,
        )  # fmt: skip
        self.checks = self.bars.add_task("starting", total=None)
        self.steps = self.bars.add_task("", total=None, visible=False)
        self.total = self.ended = self.said = 0
        self.title = ""
        self.began = time.monotonic()

    def __enter__(self) -> Progress:
        """Start the bars where there is a terminal."""
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bars away."""
        self.bars.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        """Take one event of the run."""
        if event["kind"] == "plan":
            self.total = event["checks"]
        elif event["kind"] == "start":
            self.title = clean_text(event["title"])
            self.began, self.said = time.monotonic(), 0
            self._count()
        elif event["kind"] == "progress":
            done, total = event["done"], event["total"]
            words = pace(event, time.monotonic() - self.began)
            self.bars.update(
                self.steps, description=words, completed=done, total=total, visible=True
            )
            before, self.said = self.said, done * LINES // max(total, 1)
            if self.said > before:
                self._line(f"           {words}")
        elif event["kind"] == "end":
            self.ended += 1
            self._count()
            outcome = event["outcome"]
            name = outcome.stub or outcome.gate
            self._line(f"{MARKS[str(outcome.status)][0]:>9}  {name}  {event['title']}")

    def _count(self) -> None:
        """Show which check runs, and take away what the one before was at."""
        count = f"{self.ended}/{self.total}  " if self.total else ""
        self.bars.update(
            self.checks, description=f"{count}{self.title}", completed=self.ended,
            total=self.total or None,
        )  # fmt: skip
        self.bars.update(self.steps, visible=False)

    def _line(self, text: str) -> None:
        if not self.quiet and not self.console.is_terminal:
            self.console.print(Text(clean_text(text)), soft_wrap=True)


def pace(event: Mapping[str, Any], seconds: float) -> str:
    """Return "60/300 training steps, loss 0.41, accuracy 0.87, 12 s left" after `seconds`."""
    done, total = event["done"], event["total"]
    words = [f"{done}/{total} {event.get('what', 'steps')}"]
    words += [f"{name} {event[name]:.3g}" for name in ("loss", "accuracy") if name in event]
    if 0 < done < total:
        words.append(f"{seconds / done * (total - done):.0f} s left")
    return ", ".join(words)


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
    name = clean_text(tree["submission"]["name"])
    tried = [e for e in tree["stretch"] if e["status"] not in ("not_implemented", "blocked")]
    said: dict[str, str] = {}
    tables = {
        "Parts": tree["parts"],
        "Gates": tree["gates"],
        "Stretch (scored apart)": tried,
        "Larger size (no points)": tree.get("scale"),
    }
    doubtful = [f"for a person to read: {clean_text(f['message'])}" for f in flags(tree)]
    if not tree["isolation"]["contained"]:
        doubtful.append(
            "note: on this machine the submission could read files; "
            "do not grade strangers' code here."
        )
    return Trimmed(
        Text(f"{name}: {tree['isolation']['level']} isolation", style="bold"),
        Text(),
        *(_table(title, entries, said) for title, entries in tables.items() if entries),
        *_problems(tree),
        *(Text(f"note: {clean_text(n)}", style="dim") for n in tree["submission"]["notes"]),
        *(Text(words, style="yellow") for words in doubtful),
        Text(),
        _sentence(tree),
        Text(f"report: {folder / 'report.html'}", style="dim", overflow="fold"),
        Text(f"all figures: {folder / 'results.json'}", style="dim", overflow="fold"),
    )


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


def _problems(tree: Mapping[str, Any]) -> list[RenderableType]:
    """Return each cause once, with all the places that showed it, and what to look at."""
    entries = [*tree["parts"], *tree["gates"], *tree.get("scale", [])]
    checks = [(place_of(e, c), c) for e in entries for c in e["checks"] if c["diagnosis"]]
    rows: list[RenderableType] = []
    for problem in problems(checks):
        rows.append(Text(f"{problem.where}: {brief(problem.cause)}", style="red"))
        rows.append(Padding(Text(f"look at {problem.file}: {brief(problem.advice)}"), (0, 0, 1, 4)))
    return rows


def _sentence(tree: Mapping[str, Any]) -> Text:
    if tree["grader_error"]:
        words = f"The grader failed, not the submission; no score. {tree['grader_error']}"
        return Text(words, style="magenta")
    score = f"{tree['score']} of {tree['max_score']} points"
    if tree["passed"]:
        gates = all_of(len(tree["gates"]), "gate")
        return Text(f"Passed with {score}: every part and {gates}.", style="bold green")
    return Text(f"{score}. {why_not_passed(tree)}", style="bold")
