"""What becomes of the grader's score: the late policy of lab.toml, then a person's word.

`adjustments.csv` belongs to the instructor; the batch reads it in every run and never writes it:

    student,task,points,score,comment,author,date
    a_smith,2.1,-1,,"hard-coded, see line 40",R. Berg,2026-12-03
    b_jones,,,80,graded by hand,R. Berg,2026-12-03
    c_lee,,,,"a clear docstring, well done",R. Berg,2026-12-03

`points` are added, `score` takes the score's place: of the whole, or of the part or gate that
`task` names. The store keeps the grader's own score, so that a line taken out takes its effect
along.
"""

from __future__ import annotations

import datetime
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from grader.base.csvtext import read_table
from grader.base.files import replace_file
from grader.base.result import number
from grader.base.settings import Late, Settings
from grader.classroom.people import id_key
from grader.classroom.rows import Row
from grader.classroom.store import BatchError, Output
from grader.report import html_report

NAME = "adjustments.csv"
HEADS = ("student", "task", "points", "score", "comment", "author", "date")
# Beside a report that holds a person's word: the word itself.
COMMENTS = "comments.txt"
UNKNOWN_TIME = (
    "late, but the platform does not say by how much: enter the penalty in adjustments.csv"
)


@dataclass(frozen=True)
class Adjustment:
    """One line of `adjustments.csv`; points and score are None where the cell is empty."""

    line: int
    student: str
    task: str
    points: Fraction | None
    score: Fraction | None
    comment: str
    author: str
    date: str

    @property
    def said(self) -> str:
        """Return the line as a sentence."""
        what = f"task {self.task}: " if self.task[:1].isdigit() else self.task and f"{self.task}: "
        if self.points is not None:
            what += f"{'+' if self.points >= 0 else ''}{number(self.points)} points. "
        if self.score is not None:
            what += f"{number(self.score)} points in place of the grader's. "
        by = ", ".join(filter(None, (self.author, self.date)))
        return f"{what}{self.comment}".strip() + (f" ({by})" if by else "")


def read(data: bytes, lab: Settings) -> list[Adjustment]:
    """Read `adjustments.csv`.

    Raises:
        BatchError: a line cannot be applied as it stands; the message names it.
        CsvError: it is no CSV.
    """
    table = read_table(data, NAME)
    heads = [head.strip().casefold() for head in table.values(0)]
    unknown = [head for head in heads if head not in HEADS]
    if "student" not in heads or unknown:
        raise BatchError(f"{NAME}: expected the columns {', '.join(HEADS)}; got {', '.join(heads)}")
    points = lab.points
    whole = {stub.task for stub in points.stubs} | {
        f"gate {i}" for i, _ in enumerate(points.gates, 1)
    }
    known = {stub.id for stub in points.stubs} | whole | {""}
    found = []
    for i in range(1, len(table.rows)):
        values = table.values(i)
        cells = dict.fromkeys(HEADS, "") | dict(zip(heads, values, strict=False))
        one = Adjustment(
            i + 1, cells["student"], cells["task"].casefold(),
            _number(cells["points"], i + 1), _number(cells["score"], i + 1),
            cells["comment"], cells["author"], cells["date"],
        )  # fmt: skip
        wrong = (
            "names no student" if not one.student
            else f"expected a task such as 2.1, 2 or gate 1, got {cells['task']!r}"
            if one.task not in known
            else "has points and a score: give one of them" if None not in (one.points, one.score)
            else f"gives a score to task {one.task}, which is graded with others: give points"
            if one.score is not None and one.task not in whole | {""}
            else ""
        )  # fmt: skip
        if wrong:
            raise BatchError(f"{NAME}, line {one.line}: {wrong}")
        found.append(one)
    return found


def _number(text: str, line: int) -> Fraction | None:
    try:
        return Fraction(text.replace(",", ".")) if text else None
    except ValueError:
        raise BatchError(f"{NAME}, line {line}: expected a number, got {text!r}") from None


def final(rows: Sequence[Row], adjustments: Iterable[Adjustment], late: Late | None) -> list[Row]:
    """Return the rows with the scores that count; the rows that came stay as they are.

    Each has also `graded`, the grader's score, `penalty` in points, and `comments`.

    Raises:
        BatchError: an adjustment is of nobody in the class, or of several.
    """
    whose: dict[str, set[int]] = {}
    for place, row in enumerate(rows):
        for name in names(row):
            whose.setdefault(id_key(name), set()).add(place)
    lines: dict[int, list[Adjustment]] = {}
    for one in adjustments:
        places = whose.get(id_key(one.student), set())
        if len(places) != 1:
            who = "nobody in the class is" if not places else f"{len(places)} in the class are"
            raise BatchError(f"{NAME}, line {one.line}: {who} called {one.student!r}")
        lines.setdefault(next(iter(places)), []).append(one)
    return [_final(row, lines.get(place, []), late) for place, row in enumerate(rows)]


def names(row: Mapping[str, Any]) -> list[str]:
    """Return all that a student of the row may be called by, but the name."""
    students = row["students"]
    found = [name for s in students for name in (*s["ids"], s["email"], s["platform_id"])]
    return list(filter(None, [row["name"], *found]))


def _final(row: Row, lines: Sequence[Adjustment], late: Late | None) -> Row:
    penalty, said = _penalty(row, late)
    score = None if row["score"] is None else Fraction(str(row["score"])) - penalty
    comments = [said] if said else []
    for one in lines:
        change = one.points
        if one.score is not None and one.task:
            change = one.score - _earned(row, one.task)
        if one.score is not None and not one.task:
            score = one.score
        elif change is not None:
            if score is None:
                raise BatchError(
                    f"{NAME}, line {one.line}: {one.student} has no score to change: give a score"
                )
            score += change
        comments.append(one.said)
    return row | {
        "score": None if score is None else number(max(score, Fraction(0))),
        "graded": row["score"],
        "penalty": number(penalty),
        "comments": comments,
    }


def _earned(row: Mapping[str, Any], task: str) -> Fraction:
    """Return what a part or gate earned; its name begins with "task 2 " or "gate 1 "."""
    start = task if task.startswith("gate") else f"task {task}"
    scores = [score for name, score in row["scores"].items() if name.startswith(f"{start} ")]
    return Fraction(str(scores[0])) if scores else Fraction(0)


def _penalty(row: Mapping[str, Any], late: Late | None) -> tuple[Fraction, str]:
    """Return the points that lateness costs, and a sentence on it."""
    if late is None or row["score"] is None:
        return Fraction(0), ""
    came = _time(row.get("handed_in", ""))
    if came is None:
        return Fraction(0), UNKNOWN_TIME if row["late"] else ""
    days = max((late.extensions.get(name, 0) for name in names(row)), default=0)
    due = late.deadline + datetime.timedelta(days=days)
    if came.tzinfo is None:  # the platform's clock is then the deadline's
        came = came.replace(tzinfo=due.tzinfo)
    elif due.tzinfo is None:
        due = due.replace(tzinfo=came.tzinfo)
    if came <= due + datetime.timedelta(minutes=late.grace_minutes):
        return Fraction(0), ""
    begun = -((due - came) // datetime.timedelta(days=1))  # a day begun counts
    share = min(Fraction(str(late.penalty_per_day)) * begun, Fraction(str(late.most)))
    points = Fraction(str(row["score"])) * share
    return points, f"{begun} days late: {number(points)} of {row['score']} points are taken off."


def _time(text: str) -> datetime.datetime | None:
    """Read a time as Blackboard, Gradescope or ISO 8601 write it."""
    text = text.strip().replace(" UTC", "+00:00").replace(" Z", "+00:00")
    for form in ("%Y-%m-%d-%H-%M-%S", "%Y-%m-%d %H:%M:%S.%f%z", "%Y-%m-%d %H:%M:%S.%f %z"):
        try:
            return datetime.datetime.strptime(text, form)
        except ValueError:
            continue
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return None


def tell(output: Output, rows: Iterable[Row]) -> None:
    """Bring every person's word into the student's report, and take out what is gone."""
    for row in rows:
        if not row["name"]:
            continue
        folder = output.student(row["name"])
        said = folder / COMMENTS
        report = folder / "report.html"
        if row["comments"]:
            score = "none" if row["score"] is None else f"{row['score']} of {row['max_score']}"
            lines = [*row["comments"], f"Score that counts: {score}."]
            replace_file(said, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
        elif said.exists():
            said.unlink()
            lines = []
        else:
            continue
        result = folder / "results.json"
        if result.exists():
            made = html_report.render(json.loads(result.read_bytes()))
            block = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
            if block:
                block = f"\n<section><h2>From your instructor</h2><ul>{block}</ul></section>"
            made = made.replace("<main>", f"<main>{block}", 1)
            replace_file(report, made.encode("utf-8", "replace"))
