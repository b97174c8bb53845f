"""PrairieLearn: the `results.json` of an external grader, at most 1 MB.

The score is a share of one. After a grader error the attempt is not gradable, so it costs the
student nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grader.platforms.common import WORDS, Result, Row, points, read
from grader.platforms.fit import fitting, to_json

MOST_BYTES = 1_000_000


def write(tree: Mapping[str, Any]) -> str:
    """Return PrairieLearn's JSON of a `results.json` tree."""
    return fitting(read(tree), _write, MOST_BYTES)


def _write(result: Result) -> str:
    out: dict[str, Any] = {
        "gradable": result.score is not None,
        "message": result.headline,
        "output": "\n".join(result.notes),
        "tests": [_test(row) for row in result.rows],
    }
    if result.score is None:
        out["format_errors"] = [result.headline]
        out["tests"] = []
    else:
        out["score"] = float(result.score / result.max_score)
    return to_json(out)


def _test(row: Row) -> dict[str, Any]:
    return {
        "name": row.title,
        "description": WORDS[row.status],
        "points": points(row.score),
        "max_points": points(row.max_score),
        "output": row.text,
    }
