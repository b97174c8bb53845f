"""What a person reads of each submission: a status to act on, and where it stopped.

A row is plain JSON. `verdict` is the part of it that the result alone decides; the rest is who.
`gradebook` is these rows as `gradebook.csv`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from grader.base.csvtext import cell, csv_text
from grader.classroom.collect import Collected, Student
from grader.classroom.figures import items_of
from grader.classroom.keys import Inputs
from grader.classroom.messages import Who

Row = dict[str, Any]

# Every status, and what is to be done about it.
STATUSES = {
    "passed": "nothing",
    "not_passed": "nothing: the score stands, the report says why",
    "ungradable": "ask for the files again; the note says what was found",
    "missing": "ask, or enter a zero: on the roster, but nothing came",
    "grader_error": "regrade: give the same command again; if it stays, see the note",
    "not_graded": "no shard has graded it: run that shard again, then merge again",
}
# An integrity flag is a question to a person, never a verdict.
FLAGGED = "look at the flags in results.json before the score counts"
# The code of a task file that did not come; whether it came under another name, a person sees.
ABSENT = "missing_file"
INCOMPLETE = (
    "files are missing: see in the report what was found, and ask the student for them; the score "
    "is that of what came"
)


def verdict(tree: Mapping[str, Any]) -> Row:
    """Return what a result says, without whose it is."""
    parts = [(f"task {e['task']} {e['name']}", e) for e in tree["parts"]]
    gates = [(f"gate {i} {e['name']}", e) for i, e in enumerate(tree["gates"], 1)]
    undone = [(name, e) for name, e in parts + gates if e["status"] != "passed"]
    # What waits is named only where there is nothing to wait for.
    bad = [(name, e) for name, e in undone if e["status"] != "blocked"] or undone
    stopped = next((name for name, e in gates if e["status"] != "passed"), "")
    first, how = (bad[0][0], bad[0][1]["status"]) if bad else ("", "")
    codes = dict.fromkeys(
        check["diagnosis"]["code"]
        for _, entry in bad
        for check in (entry, *entry["checks"])
        if check["diagnosis"]
    )
    said = next((e["diagnosis"] for _, e in bad if e["diagnosis"]), None)
    return {
        "status": "passed" if tree["passed"] else "not_passed",
        "score": tree["score"],
        "max_score": tree["max_score"],
        "stopped": stopped,
        "first": first,
        "how": how,
        "codes": list(codes),
        "cause": said["cause"] if said else bad[0][1]["summary"] if bad else "",
        "flags": [flag["code"] for flag in tree["integrity"]["flags"]],
        "scores": {name: e["score"] for name, e in parts + gates},
        "items": items_of(tree),
    }


def no_verdict(status: str, cause: str, max_score: int | float) -> Row:
    """Return what stands where there is no result."""
    return {
        "status": status,
        "score": None,
        "max_score": max_score,
        "stopped": "",
        "first": "",
        "how": "",
        "codes": [],
        "cause": cause,
        "flags": [],
        "scores": {},
        "items": {},
    }


def row(one: Collected, notes: Sequence[str], inputs: Inputs | None, found: Row) -> Row:
    """Return the row of a submission."""
    return {
        "name": one.key,
        "path": Who.of(one, tuple(notes)).place,
        "students": [{**asdict(student), "ids": list(student.ids)} for student in one.students],
        "late": one.late,
        "handed_in": one.handed_in,
        "upload": one.upload,
        "notes": list(notes),
        "submission": inputs.submission if inputs else "",
        "key": inputs.key if inputs else "",
        **found,
    }


def missing_row(student: Student, max_score: int | float) -> Row:
    """Return the row of a student of whom nothing came."""
    nothing = Collected("", (student,), None)
    return row(nothing, (), None, no_verdict("missing", "", max_score)) | {"path": ""}


def action(found: Mapping[str, Any]) -> str:
    """Return what is to be done about a row."""
    asked = [FLAGGED] if found["flags"] else []
    asked += [INCOMPLETE] if ABSENT in found["codes"] else []
    return "; ".join(asked) or STATUSES[found["status"]]


def count(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Count the rows by status, in the order of `STATUSES`."""
    counts = Counter(found["status"] for found in rows)
    return {status: counts[status] for status in STATUSES if counts[status]}


COLUMNS = (
    "student_id", "name", "email", "platform_id", "submission", "status", "score", "max_score",
    "late", "stopped_at", "first_problem", "how", "diagnosis", "cause", "flags", "to_do", "notes",
    "graded_score", "late_penalty", "comments",
)  # fmt: skip


def gradebook(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return `gradebook.csv`: one line for each student, quoted, safe to open in a spreadsheet."""
    return csv_text([COLUMNS, *(line for found in rows for line in _lines(found))])


def _lines(found: Mapping[str, Any]) -> Iterator[list[Any]]:
    late = {None: "", True: "yes", False: "no"}[found["late"]]
    score = "" if found["score"] is None else found["score"]
    words = [
        found["stopped"],
        found["first"],
        found["how"],
        next(iter(found["codes"]), ""),
        found["cause"],
        " ".join(found["flags"]),
        action(found),
        "; ".join(found["notes"]),
    ]
    graded = found.get("graded", found["score"])
    after = ["" if graded is None else graded, found.get("penalty", 0)]
    after.append(cell("; ".join(found.get("comments", ()))))  # fmt: skip
    for student in found["students"] or [{}]:
        ids = student.get("ids") or [student.get("platform_id") or found["name"]]
        who = [ids[0], *(student.get(k, "") for k in ("name", "email", "platform_id"))]
        yield [
            *map(cell, (*who, found["name"])), found["status"], score, found["max_score"], late,
            *map(cell, words), *after,
        ]  # fmt: skip
