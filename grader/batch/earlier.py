"""What the last run left in the output folder: its rows, and what lay there when it read."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from grader.batch.keys import Inputs, code
from grader.batch.rows import Row, no_verdict
from grader.batch.store import compact
from grader.collect import Collected

SEEN = ".seen"
# What a row must have, to be taken over.
ROW = frozenset({"name", "key", "path", "notes", *no_verdict("", "", 0)})
READ = frozenset({"name", "mark", "submission", "notes"})


class Lines:
    """JSON objects in the order of their names, read as they are asked for."""

    def __init__(self, path: Path, fields: frozenset[str], head: bytes | None = None) -> None:
        """Open a file; none, or one that cannot be read, holds nothing.

        Args:
            path: of the file.
            fields: which an object must have.
            head: the first line; with another one the file holds nothing. None = any.
        """
        self.fields = fields
        self.row: Row = {"name": ""}
        self.file: BinaryIO | None = None
        with contextlib.suppress(OSError):
            self.file = open(path, "rb")  # noqa: SIM115 (held open)
            found = self.file.readline()
            if head is not None and found != head:
                self.close()

    def of(self, name: str) -> Row | None:
        """Return the object of `name`; later names only are asked for after it."""
        while self.file and self.row["name"] < name and self._step():
            pass
        return self.row if self.row["name"] == name else None

    def _step(self) -> bool:
        assert self.file
        try:
            found = json.loads(self.file.readline())
            # The rows of those who handed in nothing come last, and have no name.
            self.row = found if self.fields <= found.keys() and found["name"] else self.row
            return self.row is found
        except (OSError, ValueError, AttributeError):
            return False

    def close(self) -> None:
        """Close the file, which is about to be replaced."""
        if self.file:
            self.file.close()
        self.file = None


def seen_head(shared: Inputs) -> bytes:
    """Return the first line of `.seen`: what else decides what is read of a submission."""
    return compact({"by": hashlib.sha256(compact([vars(shared), code()])).hexdigest()})


def seen_lines(
    shared: Inputs, submissions: Sequence[Collected], rows: Iterable[Mapping[str, Any]]
) -> Iterator[bytes]:
    """Yield the lines of `.seen`: what was read of each submission, and its mark."""
    yield seen_head(shared)
    for one, row in zip(submissions, rows, strict=False):  # then those of whom nothing came
        if mark(one) and row["name"] == one.key and row["submission"]:
            found = {name: row[name] for name in ("submission", "notes")}
            yield compact({"name": one.key, "mark": mark(one), **found})


def mark(one: Collected) -> str:
    """Return what decides what is read of a submission beside the grader, or ""."""
    text = json.dumps([one.stamp, str(one.path), one.notes])
    return hashlib.sha256(text.encode()).hexdigest() if one.stamp else ""
