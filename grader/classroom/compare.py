"""`--compare OLD`: each score that changed since another run, and what of its inputs changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from grader.base.csvtext import cell, csv_text
from grader.base.result import number
from grader.classroom.keys import Inputs, causes
from grader.classroom.rows import Row
from grader.classroom.store import STATE, BatchError, read_state

COLUMNS = ("submission", "students", "old_status", "old_score", "new_status", "new_score",
           "change", "cause", "where")  # fmt: skip
# Nothing that we know of changed: then a check is not as settled as it should be.
UNEXPLAINED = "none: the same inputs gave another score"
NAMES = {"submission": "code", "contained": "isolation"}
ABSENT: Row = {"status": "absent", "score": None, "scores": {}}
Change = dict[str, Any]  # by `COLUMNS`


def load(path: Path) -> tuple[Row, list[Row]]:
    """Return the inputs and the rows of an earlier run.

    Args:
        path: its output folder.

    Raises:
        BatchError: no batch has ended there.
    """
    try:
        return read_state(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BatchError(
            f"--compare expects the output folder of a batch that ended, with {STATE} in it; "
            f"{path} has none that can be read ({type(error).__name__})"
        ) from None


def changes(old: tuple[Row, list[Row]], inputs: Inputs, rows: Iterable[Row]) -> list[Change]:
    """Return what changed between two runs, in the order of the new rows, those gone last."""
    before_inputs, old_rows = old
    before = {_identity(row): row for row in old_rows}
    found = []
    for row in rows:
        earlier = before.pop(_identity(row), None)
        if earlier is None:
            found.append(_change(ABSENT, row, "code"))
        elif (earlier["score"], earlier["status"]) != (row["score"], row["status"]):
            theirs = before_inputs | {"submission": earlier["submission"]}
            ours = vars(inputs) | {"submission": row["submission"]}
            names = [NAMES.get(name, name) for name in causes(theirs, ours)]
            failed = "grader_error" in (earlier["status"], row["status"])
            words = "the grader failed in one of the runs" if failed else UNEXPLAINED
            found.append(_change(earlier, row, " and ".join(names) or words))
    return found + [_change(row, ABSENT, "code") for row in before.values()]


def _change(old: Row, new: Row, cause: str) -> Change:
    """Return what is said of one submission whose score or status is another one than before."""
    one = old if new is ABSENT else new
    students = ", ".join(s["name"] or next(iter(s["ids"]), "") for s in one["students"])
    scores = old["score"], new["score"]
    difference = None
    if None not in scores:
        difference = number(Fraction(str(new["score"])) - Fraction(str(old["score"])))
    before, after = old["scores"], new["scores"]
    names = dict.fromkeys([*before, *after]) if before and after else ()
    pairs = [(name, before.get(name, "absent"), after.get(name, "absent")) for name in names]
    where = "; ".join(f"{name}: {was} to {now}" for name, was, now in pairs if was != now)
    values = (cell(one["name"]), cell(students), old["status"], scores[0], new["status"],
              scores[1], difference, cause, cell(where))  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def table(found: Iterable[Change]) -> str:
    """Return `changes.csv`."""
    return csv_text([COLUMNS, *(change.values() for change in found)])


def said(change: Change) -> str:
    """Return a change as a sentence."""
    name, old, new, cause, where = (
        change[k] for k in ("submission", "old_score", "new_score", "cause", "where")
    )
    return f"{name}: {old} to {new}, because of {cause}" + (f" ({where})" if where else "")


def _identity(row: Mapping[str, Any]) -> str:
    if row["name"]:
        return str(row["name"])
    # A missing student has no submission: the ids tell who it is.
    return "missing:" + json.dumps([[s["ids"], s["email"], s["name"]] for s in row["students"]])
