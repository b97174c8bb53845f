"""The small formats: Gradescope, GitHub, Classroom 50, PrairieLearn, Autolab and nbgrader.

Gradescope knows passed and failed only, so whatever else happened is failed and says so in its
output. After a grader error no score is written anywhere: Gradescope then reports that the
autograder failed and marks the submission for the staff, which is the truth. Nothing is hidden,
since one hidden test would hide the total. Source: autograder_samples, docs/specs.md.

GitHub takes annotations for Actions, and the result that the reporter of GitHub Classroom, which
was retired in August 2026, reads. In a workflow step that called `export`:

    cat github-annotations.txt
    cat report.md >> "$GITHUB_STEP_SUMMARY"
    echo "result=$(cat github-classroom.txt)" >> "$GITHUB_OUTPUT"

and the reporter's step gets `LAB_RESULTS: ${{steps.lab.outputs.result}}` and `runners: lab`.
Classroom adds up `tests[].score`, so partial credit arrives; the reporter's own table in the log
counts passed tests instead and can show another number.
"""

from __future__ import annotations

import base64
import datetime
import json
import os
import re
from typing import Any

from grader.base.csvtext import cell, csv_text
from grader.base.result import Status, number
from grader.intake.locate import PACKAGE
from grader.report.platforms.common import WORDS, Result, Row, to_json

# Actions shows ten errors, ten warnings and ten notices of a step; the rest would be lost unseen.
MOST_ANNOTATIONS = 10
NBGRADER = (
    "assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email",
    "raw_score", "late_submission_penalty", "score", "max_score",
)  # fmt: skip
ASSIGNMENT = "transformer_lab"


def gradescope(result: Result) -> str:
    """Return the `results.json` that an autograder leaves in /autograder/results."""

    def test(row: Row, scored: bool) -> dict[str, Any]:
        found = {
            "name": row.title,
            "number": {"task": "", "gate": "G", "stretch": ""}[row.kind] + row.label,
            "status": "passed" if row.passed else "failed",
            "output": row.text if row.passed else f"{WORDS[row.status]}\n{row.text}".rstrip(),
            "tags": [str(row.status)],
            "visibility": "visible",
        }
        scores = {"score": number(row.score), "max_score": number(row.max_score)}
        return found | scores if scored else found

    scored = result.score is not None
    out = {
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
        "tests": [test(row, scored) for row in result.rows]
        + [test(row, False) for row in result.stretch],
    }
    return to_json(out if result.score is None else out | {"score": number(result.score)})


def github(result: Result) -> str:
    """Return workflow commands for GitHub Actions, one on each line."""
    lines = []
    wrong = [row for row in result.rows if not row.passed and row.status is not Status.BLOCKED]
    for row in wrong[:MOST_ANNOTATIONS]:
        place = f"file={_property(f'{PACKAGE}/{row.file}')}," if row.file else ""
        place += f"line={line}," if (line := line_of(row)) else ""
        title = _property(f"{row.title}: {WORDS[row.status]}")
        lines.append(f"::error {place}title={title}::{_data(row.text)}")
    waiting = [row for row in result.rows if row.status is Status.BLOCKED]
    if waiting:
        text = "\n".join(f"{row.title}: {row.text}" for row in waiting)
        lines.append(f"::warning title=Blocked::{_data(text)}")
    lines.append(f"::notice title=Result::{_data(result.headline)}")
    return "\n".join(lines) + "\n"


def line_of(row: Row) -> int:
    """Return the line of the row's file that its text names first, or 0."""
    found = re.search(rf"(?<!\w){re.escape(row.file)}, line (\d+)", row.text) if row.file else None
    return int(found[1]) if found else 0


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def classroom(result: Result) -> str:
    """Return the value of Classroom's result variable, on one line."""

    def test(row: Row) -> dict[str, Any]:
        ours = row.status is Status.GRADER_ERROR
        return {
            "name": row.title,
            "status": "pass" if row.passed else "error" if ours else "fail",
            "message": row.text,
            "test_code": "",
            "task_id": 0,
            "filename": f"{PACKAGE}/{row.file}" if row.file else "",
            "line_no": line_of(row),
            "duration": round(row.seconds * 1000),
            "score": number(row.score),
            "max_score": number(row.max_score),
        }

    value = {
        "version": 3,
        "status": "pass" if result.passed else "error" if result.score is None else "fail",
        "message": result.headline,
        "max_score": number(result.max_score),
        "tests": [test(row) for row in result.rows],
    }
    return base64.b64encode(_line(value).encode()).decode() + "\n"


def classroom50(result: Result) -> str:
    """Return the `result.json` of an autograder of Classroom 50.

    What its runner tells an autograder comes from the environment. It takes whole points; a row
    that did not pass is rounded down. Without a score the file is refused, which is the truth.
    """

    def test(name: str, passed: bool, score: int, most: int) -> dict[str, Any]:
        return {"test-name": name, "passed": passed, "score": score, "max-score": most}

    rows = [test(r.title, r.passed, int(r.score), int(r.max_score)) for r in result.rows]
    said = os.environ.get
    value = {
        "schema": "classroom50/result/v1",
        "classroom": said("CLASSROOM", ""),
        "assignment": said("ASSIGNMENT", ""),
        "submission": said("SUBMISSION_TAG", ""),
        "commit": said("COMMIT_URL", ""),
        "release": said("RELEASE_URL", ""),
        "review": said("REVIEW_URL") or said("COMMIT_URL", ""),
        "datetime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "score": None if result.score is None else sum(row["score"] for row in rows),
        "max-score": sum(row["max-score"] for row in rows),
        # The first says in words how it stands; it is worth nothing.
        "tests": [test(result.headline, result.passed, 0, 0), *rows],
    }
    return to_json(value)


def prairielearn(result: Result) -> str:
    """Return the `results.json` of an external grader, whose score is a share of one.

    After a grader error the attempt is not gradable, so it costs the student nothing.
    """
    out: dict[str, Any] = {
        "gradable": result.score is not None,
        "message": result.headline,
        "output": "\n".join(result.notes),
    }
    if result.score is None:
        return to_json(out | {"tests": [], "format_errors": [result.headline]})
    tests = [
        {
            "name": row.title,
            "description": WORDS[row.status],
            "points": number(row.score),
            "max_points": number(row.max_score),
            "output": row.text,
        }
        for row in result.rows
    ]
    return to_json(out | {"tests": tests, "score": float(result.score / result.max_score)})


def autolab(result: Result) -> str:
    """Return what the autograding job prints; the last line holds the scores.

    The lab's problems must be called as the parts and gates are: masks, ..., greedy_accuracy. Only
    the referee may write to standard output, or a student's print becomes the score line. After a
    grader error the scores are empty, which leaves the submission ungraded.
    """
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
    scores = {row.name: number(row.score) for row in result.rows}
    last = {"scores": scores if result.score is not None else {}}
    return "\n".join([*lines, "", _line(stages), _line(last)]) + "\n"


def nbgrader(result: Result) -> str:
    """Return a gradebook of one row with nbgrader's columns, its student called as the submission.

    It is properly quoted: a comma in a name shifts nothing. A score that there is none of is empty.
    """
    score = None if result.score is None else number(result.score)
    who = [cell(result.name), "", "", ""]
    row = [ASSIGNMENT, "", "", *who, score, 0, score, number(result.max_score)]
    return csv_text([NBGRADER, row])


def _line(value: Any) -> str:
    """Return JSON on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
