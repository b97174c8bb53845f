"""The tables that `verify`, `mutants` and `calibrate` print, and keep in docs/."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from rich.console import Console
from rich.table import Table

from grader.run.results import environment


def measured() -> str:
    """Return when and with what: the beginning of a sentence."""
    made = environment()
    versions = ", ".join(f"{name} {made[name]}" for name in ("python", "torch", "numpy"))
    return f"Measured {date.today().isoformat()} with {versions}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows as Markdown shows them."""
    head = f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def show(headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """Print rows."""
    shown = Table(*headings, box=None, padding=(0, 1, 0, 0))
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
