"""The roster: who should have handed in, from a CSV file with headings."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grader.base.csvtext import Table, read_table
from grader.base.text import one_line
from grader.classroom.collect.model import Collected, Collection, Report, Student
from grader.classroom.people import id_key, match, name_key

_HEADS = {
    "platform_id": ("canvasid", "moodleid", "platformid"),
    "id": ("studentid", "id", "sid", "idnumber", "studentnumber", "sisuserid", "matriculation",
           "rosteridentifier", "identifier"),
    "login": ("username", "login", "loginid", "sisloginid", "githubusername", "studentusername",
              "githubid", "user"),
    "name": ("name", "fullname", "student", "studentname"),
    "first": ("firstname", "givenname", "givennames", "first", "forename", "vorname", "prenom"),
    "last": ("lastname", "surname", "familyname", "last", "nachname", "nomdefamille"),
    "email": ("email", "emailaddress", "mail", "emailadresse"),
}  # fmt: skip
# What stands in a Moodle grading worksheet: Participant 123, the word in the site's language.
_NUMBERED = re.compile(r"[^\d\s@][^\d@]*(?:\s|[^\W\da-zA-Z])(\d+)")


# Rows of a Canvas gradebook that are no students; Canvas makes a test student of its own.
_NOBODY = frozenset({"Points Possible", "Student, Test", "Test Student"})


class RosterError(ValueError):
    """A roster that cannot be used; the message says what was expected and found."""


@dataclass(frozen=True)
class Roster:
    """The students, each once, and notes on what was wrong with the file."""

    students: list[Student]
    notes: list[str]


def read_roster(data: bytes) -> Roster:
    """Read a roster with commas, semicolons or tabs, with or without a byte-order mark.

    Raises:
        RosterError: it has no column that tells students apart, or no students.
        CsvError: it is no CSV at all.
    """
    table = read_table(data, "the roster")
    heads = [_letters_of(head) for head in table.values(0)]
    where = {
        field: next((heads.index(name) for name in names if name in heads), None)
        for field, names in _HEADS.items()
    }
    _find_by_content(where, table)
    canvas = "student" in heads and any("section" in head for head in heads)
    if all(where[field] is None for field in ("id", "login", "email", "platform_id")):
        raise RosterError(
            "the roster needs a column that tells students apart: student_id, username or email; "
            f"got the columns {', '.join(map(one_line, table.values(0)))}"
        )
    notes: list[str] = []
    seen: dict[tuple[str, str], tuple[int, Student]] = {}
    students: list[Student] = []
    for line in range(1, len(table.rows)):
        values = table.values(line)
        cells = {
            field: values[k] if k is not None and k < len(values) else ""
            for field, k in where.items()
        }
        student = _student(cells)
        keys = [(n, id_key(cells[n])) for n in ("platform_id", "id", "login", "email")]
        keys = [key for key in keys if key[1]]
        if canvas and (cells["name"] in _NOBODY or not any(cells.values())):
            continue
        if not keys:
            notes.append(f"row {line + 1} names no student: left out")
            continue
        twice = next((seen[key] for key in keys if key in seen), None)
        if twice:
            same = "the same" if twice[1] == student else "another"
            notes.append(f"row {line + 1} repeats row {twice[0]} with {same} content: left out")
            continue
        seen.update(dict.fromkeys(keys, (line + 1, student)))
        students.append(student)
    if not students:
        raise RosterError("the roster has headings but no students")
    return Roster(students, notes)


def _letters_of(head: str) -> str:
    """Return a heading without case, marks and spaces: "Pr\u00e9nom" is "prenom"."""
    return re.sub(r"[^a-z]", "", unicodedata.normalize("NFKD", head).casefold())


def _find_by_content(where: dict[str, int | None], table: Table) -> None:
    """Find the columns of a Moodle worksheet in another language by what stands in them."""
    lines = [table.values(i) for i in range(1, len(table.rows))]
    columns = [list(filter(None, column)) for column in zip(*lines, strict=False)]
    free = [k for k, values in enumerate(columns) if values and k not in where.values()]
    numbered = [k for k, values in enumerate(columns) if all(map(_NUMBERED.fullmatch, values))]
    if not numbered or not columns[numbered[0]]:
        return
    if where["id"] is None:
        where["id"] = numbered[0]
        free = [k for k in free if k != numbered[0]]
    if where["email"] is None:
        where["email"] = next((k for k in free if all("@" in v for v in columns[k])), None)
    behind = numbered[0] + 1  # where Moodle keeps the full name
    if where["name"] is where["first"] is None and behind in free and behind != where["email"]:
        where["name"] = behind


def _student(cells: dict[str, str]) -> Student:
    numbered = _NUMBERED.fullmatch(cells["id"])
    if numbered and not cells["platform_id"]:
        cells = cells | {"platform_id": numbered[1], "id": ""}
    name = cells["name"] or f"{cells['first']} {cells['last']}".strip()
    ids = tuple(filter(None, (cells["id"], cells["login"])))
    return Student(cells["platform_id"], ids, name, cells["email"])


def compare(submissions: Sequence[Collected], roster: Roster, report: Report) -> Collection:
    """Return the class, its students with the roster's ids, names and addresses.

    Who is missing and who is unknown is reported. A student who is nobody's match, but whose id
    came, perhaps twice, is not missing.
    """
    came = [(i, k) for i, one in enumerate(submissions) for k in range(len(one.students))]
    ours = [submissions[i].students[k] for i, k in came]
    listed = roster.students
    pairs = match(
        # A download may know nobody but by number, which a roster often has as the id.
        [([s.platform_id], _ids(s), [s.platform_id], [_letters(s)]) for s in ours],
        [([s.platform_id], _ids(s), _ids(s), [_letters(s)]) for s in listed],
    )
    report.notes += roster.notes
    matched, known_ids = set(pairs.values()), {key for student in ours for key in _ids(student)}
    unmatched = [s for row, s in enumerate(listed) if row not in matched]
    missing = [s for s in unmatched if not known_ids & set(_ids(s))]
    report.missing += [student.who for student in missing]
    report.unknown += [ours[i].who for i in range(len(ours)) if i not in pairs]
    known = {came[i]: _merged(ours[i], listed[row]) for i, row in pairs.items()}
    completed = [
        replace(one, students=tuple(known.get((i, k), s) for k, s in enumerate(one.students)))
        for i, one in enumerate(submissions)
    ]
    return Collection(completed, report, missing)


def _ids(student: Student) -> list[str]:
    return [id_key(text) for text in (*student.ids, student.email) if text]


def _letters(student: Student) -> str:
    """Return the letters of a name in order of its words, as Canvas runs them together."""
    return "".join(sorted(name_key(student.name).replace(" ", "")))


def _merged(ours: Student, listed: Student) -> Student:
    ids = tuple(dict.fromkeys((*listed.ids, *ours.ids)))
    platform_id = ours.platform_id or listed.platform_id
    return Student(platform_id, ids, listed.name or ours.name, listed.email or ours.email)
