"""Fills the gradebook that Canvas or Moodle exported, in place.

Only the cells of this assignment's grade change: delimiter, byte-order mark, quoting, line ends,
decimal comma and every other cell stay as they were. A row is matched by the platform's own id;
a student who has none is matched by another id or the address, then by name. A match that is not
unique is no match.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from grader.base.csvtext import Cell, Table, read_table
from grader.base.result import number
from grader.classroom.people import id_key, match, name_key
from grader.report.platforms.common import exact

_TITLE_ID = re.compile(r"(?s)(.*\S)\s+\((\d+)\)")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)?")
_IDENTIFIER = re.compile(r"\D+?(\d+)")
_MAXIMUM = "Maximum Grade"


class GradebookError(ValueError):
    """A gradebook that cannot be filled; the message says what was expected and found."""


@dataclass(frozen=True)
class Grade:
    """What one student gets.

    Attributes:
        platform_id: the id in the platform's own numbering, or "".
        ids: what else may identify the student: number, login, address.
        name: full name, or "".
        score: None when there is none (a grader error), which leaves the cell alone.
        max_score: of the lab.
    """

    platform_id: str
    ids: tuple[str, ...]
    name: str
    score: int | float | None
    max_score: int | float

    @property
    def who(self) -> str:
        """Return what a message calls the student."""
        return self.name or next(filter(None, (self.platform_id, *self.ids)), "a nameless student")


class _Columns(NamedTuple):
    """Where a gradebook keeps its own id, other ids and addresses, the name, and the grade."""

    own: int
    others: list[int]
    name: list[int]
    grade: int


@dataclass
class Filled:
    """The gradebook with its grades, and who did not come into it."""

    data: bytes = b""
    filled: int = 0
    unmatched: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def fill(data: bytes, grades: Sequence[Grade], column: str | None = None) -> Filled:
    """Fill a gradebook of whichever platform it is.

    Args:
        data: the exported CSV.
        grades: one for each student.
        column: the assignment (Canvas) or the heading of the grade (Moodle); it may be left out
            where only one fits.

    Raises:
        GradebookError: it is of neither platform, the column is unclear, or its points differ.
        CsvError: it is no CSV.
    """
    if {"Student", "LastName"} & set(read_table(data, "the gradebook").values(0)):
        return fill_canvas(data, grades, column)
    try:
        return fill_moodle(data, grades, column)
    except GradebookError as error:
        raise GradebookError(f"as Canvas it has no column Student; as Moodle: {error}") from None


def fill_canvas(data: bytes, grades: Sequence[Grade], assignment: str | None = None) -> Filled:
    """Fill a Canvas gradebook; the assignment is a heading, a title or an id. See `fill`."""
    table = read_table(data, "the Canvas gradebook")
    heads = table.values(0)
    named = heads[:1] == ["Student"] or heads[:2] == ["LastName", "FirstName"]
    if not named or "ID" not in heads or not any("Section" in head for head in heads):
        raise GradebookError(
            "expected a Canvas gradebook with the columns Student, ID and Section, got "
            + _few(heads)
        )
    column = _canvas_column(heads, assignment)
    rows = range(1, len(table.rows))
    extra = [i for i in rows if _canvas_extra(table.values(i))]
    for i in extra:
        possible = _value(table, i, column)
        if "read only" in possible:
            raise GradebookError(f"{heads[column]} is read only in Canvas")
        if "Points Possible" in table.rows[i][0].value and _NUMBER.fullmatch(possible):
            _check_points(possible, grades, heads[column])
    columns = _Columns(
        own=heads.index("ID"),
        others=[heads.index(h) for h in ("SIS User ID", "SIS Login ID") if h in heads],
        name=[0, 1] if heads[0] == "LastName" else [0],
        grade=column,
    )
    return _fill(table, [i for i in rows if i not in extra], columns, grades)


def fill_moodle(data: bytes, grades: Sequence[Grade], grade_column: str | None = None) -> Filled:
    """Fill a Moodle grading worksheet, its headings in any language. See `fill`."""
    table = read_table(data, "the Moodle grading worksheet")
    heads = table.values(0)
    students = list(range(1, len(table.rows)))
    cells = {head: [_value(table, i, k) for i in students] for k, head in enumerate(heads)}
    identifier = next(
        (h for h in heads if cells[h] and all(_IDENTIFIER.fullmatch(v) for v in cells[h])), None
    )
    if identifier is None:
        raise GradebookError(
            "expected a Moodle grading worksheet, whose first column holds identifiers such as "
            f"Participant 123, got the columns {_few(heads)}"
        )
    column, maximum = _moodle_columns(heads, cells, grades, grade_column)
    if maximum is not None:
        for value in sorted(set(filter(None, cells[heads[maximum]]))):
            _check_points(value, grades, heads[column])
    locked = heads.index("Grade can be changed") if "Grade can be changed" in heads else None
    closed = [i for i in students if locked is not None and _value(table, i, locked) == "No"]
    address = [h for h in heads if any("@" in value for value in cells[h])]
    columns = _Columns(
        own=heads.index(identifier),
        others=[heads.index(h) for h in ("ID number", *address[:1]) if h in heads],
        name=_moodle_name(heads),
        grade=column,
    )
    filled = _fill(table, [i for i in students if i not in closed], columns, grades)
    if closed:
        filled.notes.append(f"{len(closed)} rows whose grade cannot be changed were left alone")
    return filled


def _canvas_column(heads: list[str], assignment: str | None) -> int:
    titles = {k: _TITLE_ID.fullmatch(head) for k, head in enumerate(heads)}
    found = {k: match for k, match in titles.items() if match}
    if assignment is None:
        fits = list(found)
    else:
        wanted = assignment.strip()
        fits = [k for k, m in found.items() if wanted in (heads[k], m[1], m[2])]
    if len(fits) == 1:
        return fits[0]
    titled = _few([heads[k] for k in found]) or "none"
    what = f"the assignment {assignment!r}" if assignment else "one assignment"
    raise GradebookError(
        f"expected {what} among the columns with an id, got {titled}: name it with --column"
    )


def _canvas_extra(values: list[str]) -> bool:
    """Tell whether a row holds points or posting policies, not a student."""
    policy = re.compile(r"(?i)(Muted|Manual Posting.*)?")
    return "Points Possible" in values[0] or all(map(policy.fullmatch, values))


def _moodle_columns(
    heads: list[str], cells: dict[str, list[str]], grades: Sequence[Grade], wanted: str | None
) -> tuple[int, int | None]:
    """Return the columns of the grade and of the maximum, by name or by what they hold."""
    if wanted is not None:
        if heads.count(wanted) != 1:
            raise GradebookError(f"expected a column {wanted!r}, got {_few(heads)}")
        column = heads.index(wanted)
        behind = heads[column + 1 : column + 2]
        return column, column + 1 if behind and _constant(cells[behind[0]]) else None
    if "Scale" in heads:
        raise GradebookError("the assignment is graded by a scale in Moodle: expected points")
    if "Grade" in heads:
        return heads.index("Grade"), heads.index(_MAXIMUM) if _MAXIMUM in heads else None
    # Moodle puts the maximum right behind the grade, whatever the language.
    constant = [k for k, head in enumerate(heads) if k and _constant(cells[head])]
    if len(constant) == 1:
        return constant[0] - 1, constant[0]
    raise GradebookError(f"which column holds the grade? name it with --column: {_few(heads)}")


def _moodle_name(heads: list[str]) -> list[int]:
    """Return the columns of the name, whole or split; they follow the identifier."""
    split = [heads.index(head) for head in ("First name", "Last name") if head in heads]
    whole = heads.index("Full name") if "Full name" in heads else min(1, len(heads) - 1)
    return split if len(split) == 2 and "Full name" not in heads else [whole]


def _constant(values: list[str]) -> bool:
    return len(set(values)) == 1 and _NUMBER.fullmatch(values[0]) is not None


def _check_points(text: str, grades: Sequence[Grade], head: str) -> None:
    possible = Fraction(text.replace(",", "."))
    for grade in grades:
        if exact(grade.max_score, "max_score") != possible:
            raise GradebookError(
                f"{head} has {text} points in the gradebook and {grade.max_score} in the lab: set "
                "the assignment's points to the lab's, and export the gradebook again"
            )


def _fill(table: Table, rows: list[int], columns: _Columns, grades: Sequence[Grade]) -> Filled:
    """Fill the grades into their rows.

    Who has a platform id is matched by it or not at all: a namesake is somebody else.
    """

    def of_grade(grade: Grade) -> list[list[str]]:
        if grade.platform_id:
            return [[grade.platform_id], *([] for _ in columns.others), []]
        ids = [id_key(text) for text in grade.ids]
        return [[], *(ids for _ in columns.others), [name_key(grade.name)]]

    def of_row(row: int) -> list[list[str]]:
        own = _value(table, row, columns.own)
        found = _IDENTIFIER.fullmatch(own)
        others = ([id_key(_value(table, row, k))] for k in columns.others)
        name = " ".join(_value(table, row, k) for k in columns.name)
        return [[found[1] if found else own], *others, [name_key(name)]]

    column = columns.grade
    pairs = match([of_grade(grade) for grade in grades], [of_row(row) for row in rows])
    matched = {index: rows[place] for index, place in pairs.items()}
    out = Filled()
    comma = _decimal_comma(table)
    values: dict[Cell, str] = {}
    for index, grade in enumerate(grades):
        row = matched.get(index)
        if row is None:
            out.unmatched.append(grade.who)
        elif grade.score is None:
            out.notes.append(f"{grade.who} has no score: the cell was left alone")
        elif len(table.rows[row]) <= column:
            out.notes.append(f"the row of {grade.who} is shorter than the headings: left alone")
        elif table.rows[row][column].value.strip().upper() == "EX":
            out.notes.append(f"{grade.who} is excused: the cell was left alone")
        else:
            text = str(number(exact(grade.score, f"the score of {grade.who}")))
            values[table.rows[row][column]] = text.replace(".", ",") if comma else text
    out.data = table.changed(values)
    out.filled = len(values)
    return out


def _decimal_comma(table: Table) -> bool:
    values = [cell.value.strip() for row in table.rows[1:] for cell in row]
    decimals = [value for value in values if re.fullmatch(r"\d+[.,]\d+", value)]
    commas = sum("," in value for value in decimals)
    return commas * 2 > len(decimals) if decimals else table.delimiter == ";"


def _value(table: Table, row: int, column: int) -> str:
    cells = table.rows[row]
    return cells[column].value.strip() if column < len(cells) else ""


def _few(heads: Iterable[str]) -> str:
    named = [head for head in heads if head]
    return ", ".join(named[:8]) + (", ..." if len(named) > 8 else "")
