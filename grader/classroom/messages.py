"""What a batch and its workers say to each other, as JSON, and the files that a student gets.

A submission goes out, its result comes back. Nothing else crosses, and nothing is ever unpickled.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grader.classroom.collect import Collected
from grader.intake.staging import Staged
from grader.report import html_report

NAMES = ("results.json", "report.html")
# Stands in a student's folder in place of these where there is no result.
MESSAGE = "message.txt"
UNPACKED = "unpacked"
# Stands for a folder that nobody has made: it came as loose files, or as several archives.
GATHERED = "PATH"


@dataclass(frozen=True)
class Who:
    """What a result says of the submission beside its verdict.

    Attributes:
        name: of the submission in this class.
        path: where it lies, or will lie when `archive` is unpacked, or `PATH`.
        notes: on how it was collected.
        archive: what has to be unpacked first, or "".
    """

    name: str
    path: str
    notes: tuple[str, ...]
    archive: str = ""

    @classmethod
    def of(cls, one: Collected, notes: tuple[str, ...]) -> Who:
        """Return what is to be said of a submission."""
        archive, member = one.packed
        path = f"{UNPACKED}/{member}" if archive else str(one.path or GATHERED)
        return cls(one.key, path, notes, archive)

    @property
    def place(self) -> str:
        """Return where it lies, in one text."""
        return f"{self.archive}: {self.path}" if self.archive else self.path

    def replay(self, seed: int) -> str:
        """Return the command that grades it alone."""
        command = f"python -m grader grade {shlex.quote(self.path)} --seed {seed}"
        if not self.archive:
            return command
        return f"python -m zipfile -e {shlex.quote(self.archive)} {UNPACKED} && {command}"


def texts(tree: Mapping[str, Any], who: Who) -> dict[str, str]:
    """Return the texts of `NAMES`; the same result and student, the same bytes."""
    submission = tree["submission"]
    notes = [*who.notes, *submission["notes"]]
    seen = dict(tree) | {
        "submission": submission | {"name": who.name, "notes": notes},
        "replay": who.replay(tree["seed"]),
    }
    result = json.dumps(seen, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return {"results.json": result, "report.html": html_report.render(seen)}


def pack(staged: Staged, isolation: str, who: Who) -> bytes:
    """Return the message that asks for a grading, and for the texts of a student, on one line."""
    message = {
        "isolation": isolation,
        "who": asdict(who),
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
        notes=message["notes"],
        missing=message["missing"],
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
    return Answer(**found)


def untimed(value: Any) -> Any:
    """Return a tree whose seconds are 0, for they alone differ from run to run."""
    if isinstance(value, dict):
        return {k: 0 if k == "seconds" else untimed(v) for k, v in value.items()}
    if isinstance(value, list):
        return [untimed(item) for item in value]
    return value
