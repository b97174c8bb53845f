"""A gradebook with nbgrader's columns, but properly quoted: a comma in a name shifts nothing."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grader.platforms.common import Result, plain, points, read

COLUMNS = (
    "assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email",
    "raw_score", "late_submission_penalty", "score", "max_score",
)  # fmt: skip
ASSIGNMENT = "transformer_lab"


@dataclass(frozen=True)
class Person:
    """Who stands in a row, as far as it is known."""

    student_id: str
    last_name: str = ""
    first_name: str = ""
    email: str = ""
    timestamp: str = ""


def write(tree: Mapping[str, Any]) -> str:
    """Return a table with one row, whose student is called as the submission is."""
    result = read(tree)
    return table([(Person(result.name), result)])


def table(rows: Iterable[tuple[Person, Result]]) -> str:
    """Return the table; the scores of a result that has none stay empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for person, result in rows:
        score = "" if result.score is None else points(result.score)
        texts = (person.student_id, person.last_name, person.first_name, person.email)
        writer.writerow(
            [ASSIGNMENT, "", cell(person.timestamp), *map(cell, texts), score, 0, score]
            + [points(result.max_score)]
        )
    return out.getvalue()


def cell(text: str) -> str:
    """Return a text on one line that no spreadsheet takes for a formula."""
    text = " ".join(plain(text).split())
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
