"""A student's folder: the result under the name that the student has in this class."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from grader import report_html

NAMES = ("results.json", "report.html")
MESSAGE = "message.txt"


@dataclass(frozen=True)
class Who:
    """What a result says of the submission beside its verdict.

    Attributes:
        name: of the submission in this class.
        path: where it lies, or the name where it had to be unpacked.
        notes: on how it was collected.
    """

    name: str
    path: str
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def texts(tree: Mapping[str, Any], who: Who) -> dict[str, str]:
    """Return the texts of `NAMES`; the same result and student, the same bytes."""
    submission = tree["submission"]
    notes = [*who.notes, *submission["notes"]]
    seen = dict(tree) | {
        "submission": submission | {"name": who.name, "notes": notes},
        "replay": f"python -m grader grade {shlex.quote(who.path)} --seed {tree['seed']}",
    }
    result = json.dumps(seen, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return {"results.json": result, "report.html": report_html.render(seen)}
