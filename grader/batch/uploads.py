"""What goes back to the platform: the instructor's own gradebook, filled, and the feedback.

`--fill CSV` takes the export of a Canvas gradebook or a Moodle grading worksheet and writes a copy
in which the grades of this assignment stand and nothing else has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from grader.batch.rows import Row, Rows
from grader.batch.store import Output
from grader.batch.view import MESSAGE
from grader.csvtext import read_table
from grader.files import replace_file, replacing
from grader.gradebooks import (
    Filled,
    Grade,
    GradebookError,
    feedback_zip,
    fill_canvas,
    fill_moodle,
    is_feedback_zip,
)

REPORT = "report.html"


def grades(rows: Iterable[Row]) -> list[Grade]:
    """Return a grade for each student who handed in."""
    return [
        Grade(
            student["platform_id"],
            (*student["ids"], *filter(None, [student["email"]])),
            student["name"],
            row["score"],
            row["max_score"],
        )
        for row in rows
        if row["status"] != "missing"
        for student in row["students"]
    ]


def fill(data: bytes, rows: Iterable[Row], column: str | None) -> Filled:
    """Fill a gradebook of whichever platform it is.

    Args:
        data: the exported CSV.
        rows: of the class.
        column: the assignment (Canvas) or the heading of the grade (Moodle), where it is unclear.

    Raises:
        GradebookError: it is of neither platform, or cannot be filled.
        CsvError: it is no CSV.
    """
    found = grades(rows)
    if {"Student", "LastName"} & set(read_table(data, "the gradebook").values(0)):
        return fill_canvas(data, found, column)
    try:
        return fill_moodle(data, found, column)
    except GradebookError as error:
        raise GradebookError(f"as Canvas it has no column Student; as Moodle: {error}") from None


def check(data: bytes, column: str | None, max_score: int | float) -> None:
    """Raise what `fill` would, before a class is graded."""
    nobody = {"platform_id": "", "ids": [], "name": "", "email": ""}
    row = {"status": "", "score": None, "max_score": max_score, "students": [nobody]}
    fill(data, [row], column)


def write(output: Output, rows: Rows, source: Path | None, column: str | None) -> list[str]:
    """Write `upload/` and return what is to be said about it.

    Raises:
        GradebookError: as `fill`.
        CsvError: as `fill`.
    """
    folder = output.folder / "upload"
    said = []
    if source is not None:
        filled = fill(source.read_bytes(), rows, column)
        replace_file(folder / source.name, filled.data)
        said.append(f"{folder / source.name}: {filled.filled} grades filled in")
        said += filled.notes
        said += [f"{who} has no row of their own in it" for who in filled.unmatched]
    if any(row["upload"] for row in rows):
        packed = folder / "feedback.zip"
        if not is_feedback_zip(_feedback(output, rows), packed):
            with replacing(packed) as file:
                feedback_zip(_feedback(output, rows), file)
        said.append(f"{folder / 'feedback.zip'}: the reports, named for upload")
    return said


def _feedback(output: Output, rows: Iterable[Row]) -> Iterator[tuple[str, str, Path]]:
    for row in rows:
        name = MESSAGE if row["status"] == "ungradable" else REPORT
        file = output.student(row["name"]) / name
        if row["upload"] and file.is_file():
            yield row["upload"], name, file
