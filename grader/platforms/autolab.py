"""Autolab: what the autograding job prints; the last line holds the scores.

The lab's problems must be called as the parts and gates are: masks, ..., greedy_accuracy. Only the
referee may write to standard output, or a student's print becomes the score line. After a grader
error the scores are empty, which leaves the submission ungraded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from grader.platforms.common import WORDS, Result, points, read
from grader.platforms.fit import fitting

MOST_BYTES = 1_000_000


def write(tree: Mapping[str, Any]) -> str:
    """Return the job's output for a `results.json` tree."""
    return fitting(read(tree), _write, MOST_BYTES)


def _write(result: Result) -> str:
    lines = [result.headline, *(f"Note: {note}" for note in result.notes)]
    for row in (*result.rows, *result.stretch):
        lines += ["", f"{row.title}: {WORDS[row.status]}"]
        lines += [f"    {line}" for line in row.text.split("\n") if not row.passed]
    stages: dict[str, Any] = {"_presentation": "semantic", "stages": ["Tasks", "Gates"]}
    for stage, kind in (("Tasks", "task"), ("Gates", "gate")):
        stages[stage] = {
            row.name: {"passed": row.passed, "hint": "" if row.passed else row.text}
            for row in result.rows
            if row.kind == kind
        }
    scores = {row.name: points(row.score) for row in result.rows}
    last = {"scores": scores if result.score is not None else {}}
    return "\n".join([*lines, "", _line(stages), _line(last)]) + "\n"


def _line(value: Any) -> str:
    """Return JSON on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
