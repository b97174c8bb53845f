"""What a person reads of each submission: a status to act on, and where it stopped.

A row is plain JSON. `verdict` is the part of it that the result alone decides; the rest is who.
"""

from __future__ import annotations

import json
import math
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grader.batch.keys import Inputs
from grader.batch.view import Who
from grader.collect import Collected, Student

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
    }


def row(one: Collected, notes: Sequence[str], inputs: Inputs | None, found: Row) -> Row:
    """Return the row of a submission."""
    return {
        "name": one.key,
        "path": Who.of(one, tuple(notes)).place,
        "students": [student_row(s) for s in one.students],
        "late": one.late,
        "upload": one.upload,
        "notes": list(notes),
        "submission": inputs.submission if inputs else "",
        "key": inputs.key if inputs else "",
        **found,
    }


def missing_row(student: Student, max_score: int | float) -> Row:
    """Return the row of a student of whom nothing came."""
    return {
        "name": "",
        "path": "",
        "students": [student_row(student)],
        "late": None,
        "upload": "",
        "notes": [],
        "submission": "",
        "key": "",
        **no_verdict("missing", "", max_score),
    }


def student_row(student: Student) -> dict[str, Any]:
    """Return a student as JSON."""
    return {
        "platform_id": student.platform_id,
        "ids": list(student.ids),
        "name": student.name,
        "email": student.email,
    }


def action(found: Mapping[str, Any]) -> str:
    """Return what is to be done about a row."""
    asked = [FLAGGED] if found["flags"] else []
    asked += [INCOMPLETE] if ABSENT in found["codes"] else []
    return "; ".join(asked) or STATUSES[found["status"]]


class Rows:
    """The rows of a class, on disk: in memory a few numbers stand for each."""

    def __init__(self, folder: Path | None = None, number: int = 0) -> None:
        """Have no rows yet.

        Args:
            folder: where the file lies, which has no name there; None = where such files lie.
            number: of the places that `put` fills in any order; `add` appends one.
        """
        self.folder = folder
        # Unbuffered: nothing is left that could fail when the file is closed.
        self.file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (held open)
        weakref.finalize(self, self.file.close)
        self.end = 0
        self.starts = array("q", [-1]) * number
        self.lengths = array("q", [0]) * number
        self.seconds = array("d", [math.nan]) * number

    def put(self, place: int, line: bytes, seconds: float = math.nan) -> None:
        """Keep a row, a line of JSON, at its place, and the seconds if it was graded now.

        Raises:
            OSError: the disk is full.
        """
        rest = memoryview(line)
        try:
            self.file.seek(self.end)
            while rest:
                rest = rest[self.file.write(rest) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.folder)) from None
        self.starts[place], self.lengths[place] = self.end, len(line)
        self.seconds[place] = seconds
        self.end += len(line)

    def add(self, line: bytes) -> None:
        """Append a row."""
        for numbers in (self.starts, self.lengths):
            numbers.append(-1)
        self.seconds.append(math.nan)
        self.put(len(self) - 1, line)

    def __len__(self) -> int:
        """Return the number of places."""
        return len(self.starts)

    def lines(self) -> Iterator[bytes]:
        """Yield the rows as lines of JSON, as often as is asked."""
        for start, length in zip(self.starts, self.lengths, strict=True):
            if start >= 0:
                self.file.seek(start)
                yield self.file.read(length)

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows, as often as is asked."""
        return map(json.loads, self.lines())


def count(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Count the rows by status, in the order of `STATUSES`."""
    counts = dict.fromkeys(STATUSES, 0)
    for found in rows:
        counts[found["status"]] += 1
    return {status: number for status, number in counts.items() if number}
