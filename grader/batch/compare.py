"""`--compare OLD`: each score that changed since another run, and what of its inputs changed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from grader.batch.keys import Inputs, causes
from grader.batch.rows import Row
from grader.batch.store import STATE, BatchError
from grader.platforms.nbgrader_csv import cell
from grader.result import number

COLUMNS = ("submission", "students", "old_status", "old_score", "new_status", "new_score",
           "change", "cause", "where")  # fmt: skip
# Nothing that we know of changed: then a check is not as settled as it should be.
UNEXPLAINED = "none: the same inputs gave another score"
NAMES = {"submission": "code", "contained": "isolation"}


@dataclass(frozen=True)
class Change:
    """One submission whose score or status is another one than before."""

    old: Row | None
    new: Row | None
    cause: str

    def line(self) -> list[Any]:
        """Return its line of `changes.csv`."""
        one: Row = self.new or self.old or {}
        old: Row = self.old or {}
        new: Row = self.new or {}
        before, after = old.get("score"), new.get("score")
        students = ", ".join(s["name"] or next(iter(s["ids"]), "") for s in one["students"])
        difference = None
        if before is not None and after is not None:
            difference = number(Fraction(str(after)) - Fraction(str(before)))
        return [
            cell(one["name"]), cell(students), old.get("status", "absent"), _text(before),
            new.get("status", "absent"), _text(after), _text(difference), self.cause,
            cell("; ".join(self._where(old, new))),
        ]  # fmt: skip

    def _where(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
        """Return the parts and gates whose points changed."""
        before, after = old.get("scores", {}), new.get("scores", {})
        if not before or not after:
            return []
        names = dict.fromkeys([*before, *after])
        pairs = [(n, before.get(n, "absent"), after.get(n, "absent")) for n in names]
        return [f"{name}: {old} to {new}" for name, old, new in pairs if old != new]


def load(path: Path) -> tuple[Row, list[Row]]:
    """Return the inputs and the rows of an earlier run.

    Args:
        path: its output folder.

    Raises:
        BatchError: no batch has ended there.
    """
    try:
        head, *rows = map(json.loads, (path / STATE).read_bytes().splitlines())
        if not all("status" in row and "name" in row for row in rows):
            raise KeyError("status")
        return head["inputs"], rows
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BatchError(
            f"--compare expects the output folder of a batch that ended, with {STATE} in it; "
            f"{path} has none that can be read ({type(error).__name__})"
        ) from None


def changes(old: tuple[Row, list[Row]], inputs: Inputs, rows: Iterable[Row]) -> list[Change]:
    """Return what changed between two runs, in the order of the new rows, those gone last."""
    before_inputs, old_rows = old
    before = {_identity(row): row for row in old_rows}
    shared = inputs.__dict__
    found = []
    for row in rows:
        earlier = before.pop(_identity(row), None)
        if earlier is None:
            found.append(Change(None, row, "code"))
        elif (earlier["score"], earlier["status"]) != (row["score"], row["status"]):
            theirs = before_inputs | {"submission": earlier["submission"]}
            ours = shared | {"submission": row["submission"]}
            names = [NAMES.get(name, name) for name in causes(theirs, ours)]
            failed = "grader_error" in (earlier["status"], row["status"])
            words = "the grader failed in one of the runs" if failed else UNEXPLAINED
            found.append(Change(earlier, row, " and ".join(names) or words))
    return found + [Change(row, None, "code") for row in before.values()]


def table(found: Iterable[Change]) -> str:
    """Return `changes.csv`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(change.line() for change in found)
    return out.getvalue()


def _identity(row: Mapping[str, Any]) -> str:
    if row["name"]:
        return str(row["name"])
    # A missing student has no submission: the ids tell who it is.
    return "missing:" + json.dumps([[s["ids"], s["email"], s["name"]] for s in row["students"]])


def _text(value: object) -> str:
    return "" if value is None else str(value)
