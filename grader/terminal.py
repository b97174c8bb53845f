"""What a person reads in the terminal: live lines while checks run, then the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from grader.result import clean_text

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


class Progress:
    """Shows what runs now; one plain line per finished check when there is no terminal."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        """Write to `console`."""
        self.console = console
        self.quiet = quiet
        self.live: Live | None = None
        self.title = ""
        self.said = 0

    def __enter__(self) -> Progress:
        """Start the live line where there is a terminal."""
        if self.console.is_terminal and not self.quiet:
            self.live = Live(Spinner("line", "starting"), console=self.console, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the live line away."""
        if self.live:
            self.live.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        """Take one event of the run."""
        if self.quiet:
            return
        if event["kind"] == "start":
            self.title = event["title"]
            self.said = 0
            self._show(self.title)
        elif event["kind"] == "progress":
            self._progress(event)
        elif event["kind"] == "end" and self.live is None:
            outcome = event["outcome"]
            mark = MARKS[str(outcome.status)][0]
            name = outcome.stub or outcome.gate
            self._line(f"{mark:>9}  {name}  {clean_text(event['title'])}")

    def _progress(self, event: dict[str, Any]) -> None:
        done, total = event["done"], event["total"]
        what = event.get("what", "steps")
        self._show(f"{self.title}  {done}/{total} {what}")
        if self.live is None and done * 5 // total > self.said:
            self.said = done * 5 // total
            self._line(f"           {done}/{total} {what}")

    def _show(self, text: str) -> None:
        if self.live:
            self.live.update(Spinner("line", Text(clean_text(text))))

    def _line(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)


def verdict(tree: Mapping[str, Any], where: Path) -> Group:
    """Return the verdict of a `results.json` tree, as something rich can print."""
    rows: list[Any] = [_heading(tree), Text()]
    rows.append(_table("Parts", tree["parts"]))
    rows.append(_table("Gates", tree["gates"]))
    tried = [e for e in tree["stretch"] if e["status"] not in ("not_implemented", "blocked")]
    if tried:
        rows.append(_table("Stretch (scored apart)", tried))
    if "scale" in tree:
        rows.append(_table("Larger size (no points)", tree["scale"]))
    rows += _problems(tree)
    rows += [Text(f"note: {clean_text(n)}", style="dim") for n in tree["submission"]["notes"]]
    for flag in tree["integrity"]["flags"]:
        rows.append(Text(f"for a person to read: {clean_text(flag['message'])}", style="yellow"))
    if not tree["isolation"]["contained"]:
        rows.append(
            Text(
                "note: on this machine the submission could read files; "
                "do not grade strangers' code here.",
                style="yellow",
            )
        )
    rows += [Text(), _sentence(tree), Text(f"full result: {where}", style="dim")]
    return Group(*rows)


def _heading(tree: Mapping[str, Any]) -> Text:
    name = clean_text(tree["submission"]["name"])
    return Text(f"{name}: {tree['isolation']['level']} isolation", style="bold")


def _table(title: str, entries: list[dict[str, Any]]) -> Group:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for number, item in enumerate(entries, 1):
        word, style = MARKS[item["status"]]
        table.add_row(
            item.get("task", str(number)),
            item["name"],
            Text(word, style=style),
            f"{item['score']}/{item['max_score']}",
            Text(clean_text(item["summary"]).split("\n")[0], overflow="fold"),
        )
    return Group(Text(title, style="bold"), Padding(table, (0, 0, 1, 2)))


def _problems(tree: Mapping[str, Any]) -> list[Any]:
    rows: list[Any] = []
    for item in [*tree["parts"], *tree["gates"], *tree.get("scale", [])]:
        for check in item["checks"]:
            found = check["diagnosis"]
            if found is None:
                continue
            label = f"task {check['stub']}" if check["stub"] else f"gate {item['name']}"
            rows.append(Text(f"{label}: {clean_text(found['cause'])}", style="red"))
            rows.append(
                Padding(
                    Text(f"look at {found['part']}.py: {clean_text(found['advice'])}"), (0, 0, 1, 4)
                )
            )
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
    todo = [p["task"] for p in tree["parts"] if p["status"] == "not_implemented"]
    if todo:
        return Text(f"{score}. Still to write: task {', '.join(todo)}.", style="bold")
    if tree["gates_passed"]:
        return Text(f"{score}. All four gates passed; a part is still wrong.", style="bold")
    return Text(f"{score}. Not passed yet.", style="bold")
