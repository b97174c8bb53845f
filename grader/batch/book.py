"""`gradebook.csv`: one line for each student, quoted, UTF-8, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from grader.batch.rows import action
from grader.platforms.nbgrader_csv import cell

COLUMNS = (
    "student_id", "name", "email", "platform_id", "submission", "status", "score", "max_score",
    "late", "stopped_at", "first_problem", "how", "diagnosis", "cause", "flags", "to_do", "notes",
)  # fmt: skip
_MOST = 500


def write(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the gradebook of rows, piece by piece."""
    yield _text([COLUMNS])
    for row in rows:
        yield _text(_lines(row))


def _text(lines: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def _lines(row: Mapping[str, Any]) -> Iterator[list[Any]]:
    late = {None: "", True: "yes", False: "no"}[row["late"]]
    for student in row["students"] or [{}]:
        ids = student.get("ids") or [student.get("platform_id") or row["name"]]
        texts = [ids[0], *(student.get(k, "") for k in ("name", "email", "platform_id"))]
        score = "" if row["score"] is None else row["score"]
        words = [
            row["stopped"], row["first"], row["how"], next(iter(row["codes"]), ""), row["cause"],
            " ".join(row["flags"]), action(row), "; ".join(row["notes"]),
        ]  # fmt: skip
        yield [
            *map(_cell, (*texts, row["name"])), row["status"], score, row["max_score"], late,
            *map(_cell, words),
        ]  # fmt: skip


def _cell(text: str) -> str:
    shown = cell(text)
    return shown if len(shown) <= _MOST else shown[: _MOST - 4] + " ..."
