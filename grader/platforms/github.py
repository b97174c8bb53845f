"""GitHub: annotations for Actions, and the result that Classroom's reporter reads.

In a workflow step that called `export`:

    cat github-annotations.txt
    cat report.md >> "$GITHUB_STEP_SUMMARY"
    echo "result=$(cat github-classroom.txt)" >> "$GITHUB_OUTPUT"

and the reporter's step gets `LAB_RESULTS: ${{steps.lab.outputs.result}}` and `runners: lab`.
Classroom adds up `tests[].score`, so partial credit arrives; the reporter's own table in the log
counts passed tests instead and can show another number.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from grader.platforms.common import WORDS, Result, Row, points, read
from grader.platforms.fit import fitting
from grader.result import Status

# Linux hands a process no variable of more than 128 KiB.
MOST_BYTES = 120_000
# Actions shows ten errors, ten warnings and ten notices of a step; the rest would be lost unseen.
MOST_ANNOTATIONS = 10
_PACKAGE = "transformer"


def write_annotations(tree: Mapping[str, Any]) -> str:
    """Return workflow commands for a `results.json` tree, one on each line."""
    return fitting(read(tree), _annotations, MOST_BYTES)


def write_classroom(tree: Mapping[str, Any]) -> str:
    """Return the value of Classroom's result variable, on one line."""
    return fitting(read(tree), _classroom, MOST_BYTES)


def _annotations(result: Result) -> str:
    lines = []
    wrong = [row for row in result.rows if not row.passed and row.status is not Status.BLOCKED]
    for row in wrong[:MOST_ANNOTATIONS]:
        place = f"file={_property(f'{_PACKAGE}/{row.file}')}," if row.file else ""
        title = _property(f"{row.title}: {WORDS[row.status]}")
        lines.append(f"::error {place}title={title}::{_data(row.text)}")
    waiting = [row for row in result.rows if row.status is Status.BLOCKED]
    if waiting:
        text = "\n".join(f"{row.title}: {row.text}" for row in waiting)
        lines.append(f"::warning title=Blocked::{_data(text)}")
    lines.append(f"::notice title=Result::{_data(result.headline)}")
    return "\n".join(lines) + "\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _classroom(result: Result) -> str:
    status = "pass" if result.passed else "error" if result.score is None else "fail"
    value = {
        "version": 3,
        "status": status,
        "message": result.headline,
        "max_score": points(result.max_score),
        "tests": [_test(row) for row in result.rows],
    }
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return base64.b64encode(text.encode()).decode() + "\n"


def _test(row: Row) -> dict[str, Any]:
    ours = row.status is Status.GRADER_ERROR
    return {
        "name": row.title,
        "status": "pass" if row.passed else "error" if ours else "fail",
        "message": row.text,
        "test_code": "",
        "task_id": 0,
        "filename": f"{_PACKAGE}/{row.file}" if row.file else "",
        "line_no": 0,
        "duration": round(row.seconds * 1000),
        "score": points(row.score),
        "max_score": points(row.max_score),
    }
