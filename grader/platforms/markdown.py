"""Markdown: a report for students, which GitHub shows as a job summary.

Whatever a submission wrote is escaped, so that it can neither format nor link.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

from grader.platforms.common import WORDS, Result, Row, fitting, points, read

# GitHub refuses a job summary of more than 1 MiB.
MOST_BYTES = 1_000_000
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+\-.!|~>@:])")


def write(tree: Mapping[str, Any]) -> str:
    """Return the report on a `results.json` tree."""
    return fitting(read(tree), report, MOST_BYTES)


def report(result: Result) -> str:
    """Return the report on a result."""
    lines = [f"# {escaped(result.name)}", "", f"**{escaped(result.headline)}**", ""]
    lines += ["| | | result | points |", "|---|---|---|---:|"]
    lines += [_table_row(row) for row in (*result.rows, *result.stretch)]
    wrong = [row for row in (*result.rows, *result.stretch) if not row.passed]
    for row in wrong:
        lines += ["", f"## {escaped(row.title)}: {WORDS[row.status]}", ""]
        lines += [f"{escaped(line)}  " for line in row.text.split("\n") if line]
    if result.notes:
        lines += ["", "## Notes on what was handed in", ""]
        lines += [f"- {escaped(note)}" for note in result.notes]
    if not result.contained:
        lines += ["", "Graded without containment (`contained: false`)."]
    return "\n".join(line.rstrip() if not line.strip() else line for line in lines) + "\n"


def escaped(text: str) -> str:
    """Return text on one line that Markdown and HTML take literally."""
    return _MARKUP.sub(r"\\\1", html.escape(" ".join(text.split("\n")), quote=False))


def _table_row(row: Row) -> str:
    earned = f"{points(row.score)} of {points(row.max_score)}"
    apart = " (apart)" if row.kind == "stretch" else ""
    label = f"{row.kind} {row.label}"
    return f"| {escaped(label)} | {escaped(row.name)} | {WORDS[row.status]} | {earned}{apart} |"
