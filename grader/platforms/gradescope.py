"""Gradescope: the `results.json` that an autograder leaves in /autograder/results.

Gradescope knows passed and failed only, so whatever else happened is failed and says so in its
output. After a grader error no score is written anywhere: Gradescope then reports that the
autograder failed and marks the submission for the staff, which is the truth. Nothing is hidden,
since one hidden test would hide the total. Source: autograder_samples, docs/specs.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grader.platforms.common import WORDS, Result, Row, points, read
from grader.platforms.fit import fitting, to_json

MOST_BYTES = 1_000_000


def write(tree: Mapping[str, Any]) -> str:
    """Return Gradescope's JSON of a `results.json` tree."""
    return fitting(read(tree), _write, MOST_BYTES)


def _write(result: Result) -> str:
    out: dict[str, Any] = {
        "execution_time": result.seconds,
        "output": "\n".join([result.headline, *(f"Note: {note}" for note in result.notes)]),
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": {
            "complete": result.complete,
            "contained": result.contained,
            "integrity": list(result.flags),
        },
        "tests": [_test(row, scored=result.score is not None) for row in result.rows]
        + [_test(row, scored=False) for row in result.stretch],
    }
    if result.score is not None:
        out["score"] = points(result.score)
    return to_json(out)


def _test(row: Row, *, scored: bool) -> dict[str, Any]:
    test: dict[str, Any] = {
        "name": row.title,
        "number": {"task": "", "gate": "G", "stretch": ""}[row.kind] + row.label,
        "status": "passed" if row.passed else "failed",
        "output": row.text if row.passed else f"{WORDS[row.status]}\n{row.text}".rstrip(),
        "tags": [str(row.status)],
        "visibility": "visible",
    }
    if scored:
        test |= {"score": points(row.score), "max_score": points(row.max_score)}
    return test
