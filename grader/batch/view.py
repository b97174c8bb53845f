"""A student's folder: the result under the name that the student has in this class."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from grader import report_html
from grader.collect import Collected

NAMES = ("results.json", "report.html")
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

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def texts(tree: Mapping[str, Any], who: Who) -> dict[str, str]:
    """Return the texts of `NAMES`; the same result and student, the same bytes."""
    submission = tree["submission"]
    notes = [*who.notes, *submission["notes"]]
    seen = dict(tree) | {
        "submission": submission | {"name": who.name, "notes": notes},
        "replay": who.replay(tree["seed"]),
    }
    result = json.dumps(seen, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return {"results.json": result, "report.html": report_html.render(seen)}
