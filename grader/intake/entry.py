"""One file of what was handed in, and the words for what cannot be read."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from grader.base.settings import Staging

KNOWN = "a folder, .zip, .tar.gz, .tgz, .tar or .ipynb"


class IntakeError(Exception):
    """There is nothing that can be graded; the message says what was expected and what came."""


@dataclass(frozen=True)
class Entry:
    """One file, link or special file; `read(n)` returns at most n bytes of a file."""

    path: str
    kind: Literal["file", "link", "special"]
    read: Callable[[int], bytes]


def too_many(where: object, limits: Staging) -> IntakeError:
    """Return what to raise where an archive or folder holds too much."""
    return IntakeError(
        f"{where} holds more than {limits.max_archive_entries} files: hand in the folder "
        "transformer/ only, without environments, data or history"
    )


def kind_of(mode: int) -> Literal["file", "link", "special"]:
    """Return what lies there, by its mode."""
    return "link" if stat.S_ISLNK(mode) else "file" if stat.S_ISREG(mode) else "special"
