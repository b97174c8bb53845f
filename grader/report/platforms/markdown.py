"""Markdown: a report for students, which GitHub shows as a job summary.

Whatever a submission wrote is escaped, so that it can neither format nor link.
"""

from __future__ import annotations

import html
import re

from grader.base.result import number
from grader.report.platforms.common import WORDS, Result, Row

# Anywhere; a bare address; a list, quotation or heading at the start of a line.
_MARKUP = re.compile(r"[\\`*_\[\]|~@!]|(?<=www)\.|:(?=//)|^(?:[-+#=>]|\d+(?=[.)]))")


def report(result: Result) -> str:
    """Return the report on a result."""
    lines = [f"# {escaped(result.name)}", "", f"**{escaped(result.headline)}**", ""]
    lines += ["| | | result | points |", "|---|---|---|---:|"]
    lines += [_table_row(row) for row in (*result.rows, *result.stretch)]
    wrong = [row for row in (*result.rows, *result.stretch) if not row.passed]
    if wrong:
        lines += ["", "## What to look at", ""]
    for row in wrong:
        text = [escaped(line) for line in row.text.split("\n") if line]
        lines.append(f"- **{escaped(row.title)}**: {WORDS[row.status]}")
        lines += [f"  <br>{line}" for line in text]
    if result.notes:
        lines += ["", "## Notes on what was handed in", ""]
        lines += [f"- {escaped(note)}" for note in result.notes]
    if not result.contained:
        lines += ["", "Graded without containment (`contained: false`)."]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return text on one line that Markdown and HTML take literally."""
    return html.escape(_MARKUP.sub(_escape, " ".join(text.split())), quote=False)


def _escape(found: re.Match[str]) -> str:
    text = found[0]
    return f"{text}\\" if text.isdecimal() else f"\\{text}"


def _table_row(row: Row) -> str:
    earned = f"{number(row.score)} of {number(row.max_score)}"
    apart = " (apart)" if row.kind == "stretch" else ""
    label = f"{row.kind} {row.label}"
    return f"| {escaped(label)} | {escaped(row.name)} | {WORDS[row.status]} | {earned}{apart} |"
