"""A gradebook with nbgrader's columns, but properly quoted: a comma in a name shifts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grader.csvtext import cell, csv_text
from grader.platforms.common import Result, points, read

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
    lines: list[Sequence[object]] = [COLUMNS]
    for person, result in rows:
        score = "" if result.score is None else points(result.score)
        texts = (person.student_id, person.last_name, person.first_name, person.email)
        lines.append(
            [ASSIGNMENT, "", cell(person.timestamp), *map(cell, texts), score, 0, score]
            + [points(result.max_score)]
        )
    return csv_text(lines)
