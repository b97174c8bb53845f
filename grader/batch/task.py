"""The two messages of a grading, as JSON: a submission goes out, its result comes back.

Nothing else crosses between batch and workers, and nothing of it is ever unpickled.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, NamedTuple

from grader.batch.view import Who
from grader.intake import Staged


def pack(staged: Staged, isolation: str, who: Who) -> bytes:
    """Return the message that asks for a grading, and for the texts of a student, on one line."""
    message = {
        "isolation": isolation,
        "who": who.to_json(),
        "files": {k: base64.b64encode(v).decode("ascii") for k, v in staged.files.items()},
        "sha256": staged.sha256,
        "notes": staged.notes,
        "missing": staged.missing,
        "tasks": staged.tasks,
        "stretch": staged.stretch,
        "weights": staged.weights,
    }
    return json.dumps(message).encode("ascii")


def unpack(message: dict[str, Any]) -> Staged:
    """Return the submission in a message; its name is the student's affair and stays at home."""
    return Staged(
        name="submission",
        root=Path(),
        files={k: base64.b64decode(v) for k, v in message["files"].items()},
        sha256=message["sha256"],
        notes=list(message["notes"]),
        missing=dict(message["missing"]),
        tasks=tuple(message["tasks"]),
        stretch=tuple(message["stretch"]),
        weights=tuple(message["weights"]),
    )


class Answer(NamedTuple):
    """A result, the seconds it took, what it was made by, and the texts of the student's folder."""

    tree: dict[str, Any]
    seconds: float
    inputs: dict[str, Any]
    texts: dict[str, str]


def graded(answer: bytes) -> Answer:
    """Return what an answer says.

    Raises:
        RuntimeError: the grader failed; the message says how.
    """
    found = json.loads(answer)
    if "trouble" in found:
        raise RuntimeError(found["trouble"])
    return Answer(found["tree"], found["seconds"], found["inputs"], found["texts"])


def untimed(value: Any) -> Any:
    """Return a tree whose seconds are 0, for they alone differ from run to run."""
    if isinstance(value, dict):
        return {k: 0 if k == "seconds" else untimed(v) for k, v in value.items()}
    if isinstance(value, list):
        return [untimed(item) for item in value]
    return value
