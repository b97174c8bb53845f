"""The rules that every platform's format shares, in one place.

- A result is read strictly: an unknown schema or status, a number that is not finite, or scores
  that do not add up are refused, never repaired.
- Passed is only what the referee called passed. Blocked, timed-out and crashed work earns what it
  earned and says why. A grader error is nobody's zero: there is no score, and the sentence says so.
- Text is for students. Seed, replay command, evidence, integrity flags and the details of a grader
  error stay in `results.json`.
- Text holds no control characters (hence nothing that XML forbids) and no line end but a newline.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from grader.base.result import SCHEMA, Status, number
from grader.base.text import plain
from grader.report.problems import flags

OUR_FAULT = (
    "The grader failed here, not your submission. Nothing was scored; the course staff has to "
    "grade it again."
)
UNFINISHED = "Grading did not finish. What stands here was found until then and is not final."
# Every text is cut to so many characters, from whole to none, until a result fits.
_SIZES = (20000, 4000, 1000, 300, 80, 0)
# A score is rounded to two decimals once, so two roundings differ by at most this much.
_ROUNDING = Fraction(1, 200)

WORDS = {
    Status.PASSED: "passed",
    Status.FAILED: "failed",
    Status.NOT_IMPLEMENTED: "not implemented yet",
    Status.BLOCKED: "blocked",
    Status.ERROR: "your code raised an error",
    Status.TIMEOUT: "took too long",
    Status.OUT_OF_MEMORY: "used too much memory",
    Status.CRASHED: "crashed",
    Status.PROTOCOL: "answered in a way that cannot be read",
    Status.GRADER_ERROR: "not graded: the grader failed",
}


class ExportError(ValueError):
    """A result that cannot be exported; the message says what is wrong with it."""


@dataclass(frozen=True)
class Case:
    """One check of a part or gate: its name, status and what a student reads."""

    name: str
    status: Status
    text: str
    seconds: float


@dataclass(frozen=True)
class Row:
    """One part, gate or stretch piece.

    Attributes:
        kind: "task", "gate" or "stretch".
        label: the number a student knows it by: "1" of task 1, "2" of gate 2, "S1".
        name: such as "masks" or "future_independence".
        score: exact, after the one rounding; 0 while `status` is a grader error.
        text: what a student reads, several lines, without markup.
        file: the file to look at, or "".
    """

    kind: str
    label: str
    name: str
    status: Status
    score: Fraction
    max_score: Fraction
    text: str
    file: str
    seconds: float
    cases: tuple[Case, ...]

    @property
    def title(self) -> str:
        """Return "Task 1: masks"."""
        return f"{self.kind.capitalize()} {self.label}: {self.name}"

    @property
    def passed(self) -> bool:
        """Tell whether the referee called it passed."""
        return self.status is Status.PASSED


@dataclass(frozen=True)
class Result:
    """A `results.json` as students may see it; `score` is None after a grader error."""

    name: str
    rows: tuple[Row, ...]
    stretch: tuple[Row, ...]
    score: Fraction | None
    max_score: Fraction
    passed: bool
    complete: bool
    contained: bool
    notes: tuple[str, ...]
    flags: tuple[dict[str, str], ...]

    @property
    def headline(self) -> str:
        """Say in a line or two how it stands."""
        if self.score is None:
            return OUR_FAULT
        text = f"{number(self.score)} of {number(self.max_score)} points."
        if not self.complete:
            return f"{text} {UNFINISHED}"
        if self.passed:
            return f"{text} Passed: every part and every gate."
        first = next((row for row in self.rows if not row.passed), None)
        return f"{text} Not passed yet." + (f" First to look at: {first.title}." if first else "")

    @property
    def seconds(self) -> float:
        """Return the seconds that all rows took."""
        return round(sum(row.seconds for row in self.rows), 3)


def read(tree: Mapping[str, Any]) -> Result:
    """Read the tree of a `results.json`.

    Raises:
        ExportError: the tree is of another schema, lacks a field, holds an unknown status or a
            number that is not finite, or its scores do not add up.
    """
    if tree.get("schema") != SCHEMA:
        raise ExportError(f"schema must be {SCHEMA}, got {tree.get('schema')!r}")
    try:
        ours = bool(tree["grader_error"])
        parts = [_row(e, "task", str(e["task"])) for e in tree["parts"]]
        gates = [_row(e, "gate", str(i)) for i, e in enumerate(tree["gates"], 1)]
        stretch = [_row(e, "stretch", str(e["task"])) for e in tree["stretch"]]
        ours = ours or any(r.status is Status.GRADER_ERROR for r in parts + gates)
        score = None if ours else exact(tree["score"], "score")
        max_score = exact(tree["max_score"], "max_score")
        rows = _balanced(parts + gates, score, max_score)
        complete = tree["complete"] is True
        passed = complete and not ours and tree["passed"] is True
        tried = [r for r in stretch if r.status not in (Status.NOT_IMPLEMENTED, Status.BLOCKED)]
        return Result(
            name=plain(str(tree["submission"]["name"])),
            rows=tuple(rows),
            stretch=tuple(tried),
            score=score,
            max_score=max_score,
            passed=passed,
            complete=complete,
            contained=tree["isolation"]["contained"] is True,
            notes=tuple(plain(str(note)) for note in tree["submission"]["notes"]),
            flags=tuple(
                {"code": plain(str(f["code"])), "message": plain(str(f["message"]))}
                for f in flags(tree)
            ),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ExportError(f"not the tree of a results.json: {error!r}") from None


def exact(value: Any, what: str) -> Fraction:
    """Return a score as it is written, exactly.

    Raises:
        ExportError: it is no number, not finite, or negative.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ExportError(f"{what} must be a number, got {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ExportError(f"{what} must be finite and at least 0, got {value!r}")
    return Fraction(str(value))


def _row(entry: Mapping[str, Any], kind: str, label: str) -> Row:
    status = _status(entry["status"])
    name = plain(str(entry["name"]))
    score, most = (exact(entry[key], f"{name}: {key}") for key in ("score", "max_score"))
    if score > most:
        raise ExportError(f"{name}: score {entry['score']} is above {entry['max_score']}")
    cases = tuple(_case(check) for check in entry["checks"])
    found = [entry["diagnosis"], *(check["diagnosis"] for check in entry["checks"])]
    parts = [str(d["part"]) for d in found if d]
    return Row(
        kind=kind,
        label=label,
        name=name,
        status=status,
        score=Fraction(0) if status is Status.GRADER_ERROR else score,
        max_score=most,
        text=_text(status, entry),
        file=plain(f"{parts[0]}.py") if parts else f"{name}.py" if kind == "task" else "",
        seconds=float(exact(entry["seconds"], f"{name}: seconds")),
        cases=cases,
    )


def _status(value: Any) -> Status:
    try:
        return Status(value)
    except ValueError:
        raise ExportError(f"unknown status {value!r}") from None


def _case(check: Mapping[str, Any]) -> Case:
    status = _status(check["status"])
    name = plain(str(check["check"]).rsplit("::", 1)[-1])
    seconds = float(exact(check["seconds"], f"{name}: seconds"))
    return Case(name, status, _text(status, {**check, "checks": []}), seconds)


def _text(status: Status, entry: Mapping[str, Any]) -> str:
    """Return the lines a student reads: how it ended, then every cause and its advice once."""
    if status is Status.GRADER_ERROR:
        return OUR_FAULT
    lines = [plain(str(entry["summary"]))]
    for owner in [entry, *entry["checks"]]:
        found = owner["diagnosis"]
        if found and _status(owner["status"]) is not Status.GRADER_ERROR:
            where = f"task {owner['stub']}: " if owner.get("stub") else ""
            text = plain(f"{where}{found['cause']}\nLook at {found['part']}.py: {found['advice']}")
            if not any(text.split("\n", 1)[1] in line for line in lines):
                lines.append(text)
    return "\n".join(lines)


def _balanced(rows: list[Row], score: Fraction | None, most: Fraction) -> list[Row]:
    """Let rows add up exactly: rounding each and rounding their sum may differ by a hundredth."""
    allowed = _ROUNDING * (len(rows) + 1)
    rest = most - sum(row.max_score for row in rows)
    if not rows or abs(rest) > allowed:
        raise ExportError(
            f"max_score is {float(most)}, but the rows add up to {float(most - rest)}"
        )
    largest = max(range(len(rows)), key=lambda i: rows[i].max_score)
    rows[largest] = replace(rows[largest], max_score=rows[largest].max_score + rest)
    if score is None:
        return rows
    rest = score - sum(row.score for row in rows)
    if abs(rest) > allowed:
        raise ExportError(f"score is {float(score)}, but the rows add up to {float(score - rest)}")
    for i, row in enumerate(rows):
        if rest and row.score and 0 <= row.score + rest <= row.max_score:
            rows[i] = replace(row, score=row.score + rest)
            rest = Fraction(0)
    return rows


def fitting(result: Result, text: Callable[[Result], str], most_bytes: int) -> str:
    """Return the text of `result`, whose own texts are cut as far as `most_bytes` make necessary.

    Raises:
        ExportError: even without any text it does not fit.
    """
    for size in _SIZES:
        found = text(_shortened(result, size))
        if len(found.encode()) <= most_bytes:
            return found
    raise ExportError(f"the result does not fit into {most_bytes} bytes, even without any text")


def _shortened(result: Result, most: int) -> Result:
    """Return `result` with every text cut to `most` characters."""

    def cut(text: str) -> str:
        return text if len(text) <= most else text[: max(0, most - 4)] + " ..." if most else ""

    def rows(old: Iterable[Row]) -> tuple[Row, ...]:
        return tuple(
            replace(
                row,
                text=cut(row.text),
                cases=tuple(replace(case, text=cut(case.text)) for case in row.cases),
            )
            for row in old
        )

    notes = tuple(map(cut, result.notes)) if most else ()
    return replace(result, rows=rows(result.rows), stretch=rows(result.stretch), notes=notes)


def to_json(value: Any) -> str:
    """Return strict JSON of one value and a newline."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
