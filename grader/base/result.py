"""What grading produces: statuses, outcomes, scores, and `results.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from grader.base.files import replace_file

SCHEMA = 1
SIGNIFICANT_DIGITS = 3
MAX_TEXT = 4000
T = TypeVar("T")


class Status(StrEnum):
    """How a check ended; every report tells these apart."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_IMPLEMENTED = "not_implemented"
    BLOCKED = "blocked"
    ERROR = "error"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    PROTOCOL = "protocol"
    GRADER_ERROR = "grader_error"


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong: a stable code, the part to look at, one sentence of cause, one of advice."""

    code: str
    part: str
    cause: str
    advice: str


# Which status stands for several: a fault of ours first, then not written, wrong, blocked.
DECISIVE: dict[str, int] = {"grader_error": 0, "not_implemented": 1, "blocked": 3}


def decisive(found: Iterable[T], status: Callable[[T], str]) -> T | None:
    """Return the one that stands for all that was `found`, None if everything passed."""
    bad = [one for one in found if status(one) != Status.PASSED]
    return min(bad, key=lambda one: DECISIVE.get(status(one), 2), default=None)


class CheckFailed(Exception):
    """Raised by a check that found the submission wrong."""

    def __init__(self, diagnosis: Diagnosis, evidence: Mapping[str, Any] | None = None) -> None:
        """Keep the diagnosis and the evidence for it."""
        super().__init__(diagnosis.cause)
        self.diagnosis = diagnosis
        self.evidence = dict(evidence or {})


@dataclass
class Outcome:
    """How one check ended."""

    check: str
    stub: str | None
    gate: str | None
    status: Status
    summary: str
    diagnosis: Diagnosis | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    printed: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as it stands in `results.json`."""
        found = {
            "check": self.check,
            "stub": self.stub,
            "status": str(self.status),
            "summary": clean_text(self.summary),
            "diagnosis": clean(self.diagnosis and asdict(self.diagnosis)),
            "evidence": clean(self.evidence),
            "seconds": round(self.seconds, 3),
        }
        return found | ({"printed": clean_text(self.printed)} if self.printed else {})


@dataclass
class Entry:
    """A part or a gate as `results.json` lists it."""

    name: str
    task: str | None
    status: Status
    score: Fraction
    max_score: Fraction
    summary: str
    diagnosis: Diagnosis | None
    evidence: dict[str, Any]
    seconds: float
    checks: list[Outcome]

    def to_json(self) -> dict[str, Any]:
        """Return the entry as plain values."""
        head = {"task": self.task} if self.task is not None else {}
        return head | {
            "name": self.name,
            "status": str(self.status),
            "score": number(self.score),
            "max_score": number(self.max_score),
            "summary": clean_text(self.summary),
            "diagnosis": clean(self.diagnosis and asdict(self.diagnosis)),
            "evidence": clean(self.evidence),
            "seconds": round(self.seconds, 3),
            "checks": [c.to_json() for c in self.checks],
        }


def number(value: Fraction) -> int | float:
    """Round an exact score to at most two decimals; done only once, at the end."""
    return int(value) if value.denominator == 1 else round(float(value), 2)


def significant(value: float) -> float | str:
    """Round to three significant digits; a non-finite number becomes its name."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def clean(value: Any) -> Any:
    """Return `value` as JSON can hold it, floats to three significant digits, text cleaned."""
    if isinstance(value, Mapping):
        return {clean_text(str(k)): clean(v) for k, v in value.items()}
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return significant(value)
    if hasattr(value, "tolist"):
        return clean(value.tolist())
    if isinstance(value, Iterable):
        return [clean(v) for v in value]
    return clean_text(str(value))


def clean_text(text: str) -> str:
    """Return `text` without control characters and at most 4,000 characters long."""
    kept = text
    if not text.isprintable():
        marks = (c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
        kept = "".join(marks)
    return kept if len(kept) <= MAX_TEXT else kept[: MAX_TEXT - 4] + " ..."


def write_json(path: Path, tree: Any, *, indent: int | None = 2, lasting: bool = True) -> None:
    """Write `tree` so that a reader sees the old file or the new one, never a part of it.

    A file that is not `lasting` may be lost in a power cut.
    """
    text = json.dumps(tree, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
    replace_file(path, text.encode(), lasting=lasting)
