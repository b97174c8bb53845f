"""What a class intake produces: submissions, each with its students, and a report."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from grader.base.text import one_line
from grader.intake.entries import Entry

MOST_KEY = 80


class CollectError(Exception):
    """There is no class to be collected; the message says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class Student:
    """Who handed in, as far as the download or the roster says.

    Attributes:
        platform_id: the platform's own number (Canvas, Moodle), or "".
        ids: other ids: student number, login, address, folder name.
        name: full name, or "".
        email: address, or "".
    """

    platform_id: str = ""
    ids: tuple[str, ...] = ()
    name: str = ""
    email: str = ""

    @property
    def who(self) -> str:
        """Return what a report calls the student, on one line."""
        found = next(filter(None, (self.name, self.platform_id, *self.ids, self.email)), "unknown")
        return one_line(found)


@dataclass(frozen=True, slots=True)
class Collected:
    """One submission: one grading run, one gradebook row for each of its students.

    Attributes:
        key: unique in the class and safe as the name of a folder; the same in every run.
        students: one, or the members of a group; empty when the download names nobody.
        path: a folder or file on disk that holds it all, or None.
        pieces: the files that it is put together from where `path` is None.
        late: True or False where the platform says so, else None.
        notes: sentences on how it was collected.
        upload: prefix of a feedback file's name in this platform's upload, or "".
        packed: the archive of the class and where in it this lies, or "" and "" where it lies on
            disk, or has to be put together from several files.
        handed_in: when, as the platform writes it, or "".
    """

    key: str
    students: tuple[Student, ...]
    path: Path | None
    pieces: tuple[Entry, ...] = ()
    late: bool | None = None
    notes: tuple[str, ...] = ()
    upload: str = ""
    packed: tuple[str, str] = ("", "")
    handed_in: str = ""

    @property
    def who(self) -> str:
        """Return what a report calls the submission."""
        return ", ".join(student.who for student in self.students) or self.key


@dataclass
class Report:
    """What happened to whom; every list holds sentences or names.

    Attributes:
        layout: the platform or layout that was recognised.
        why: what it was recognised by.
        missing: on the roster, without a submission.
        unknown: with a submission, not on the roster.
        duplicated: came more than once; says which one is graded.
        renamed: a file whose name the platform had changed.
        late: handed in late.
        nested: an archive within the submission that was opened.
        ungradable: cannot be graded, and why; known when each has been read.
        refused: entries with an unsafe path.
        ignored: files that belong to nobody.
    """

    layout: str
    why: str
    submissions: int = 0
    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    renamed: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    nested: list[str] = field(default_factory=list)
    ungradable: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        out = [f"{self.submissions} submissions; layout: {self.layout} ({self.why})"]
        for item in fields(self)[3:]:
            values = getattr(self, item.name)
            if values:
                out.append(f"{item.name} ({len(values)}):")
                out += [f"  {one_line(value)}" for value in values]
        return out


@dataclass(frozen=True)
class Collection:
    """A class: its submissions, sorted by key, the report on them, and of whom nothing came."""

    submissions: list[Collected]
    report: Report
    missing: Sequence[Student] = ()


def safe_key(text: str) -> str:
    """Return a name for a folder that says `text`; texts that differ give names that differ."""
    kept = "".join(c if c.isalnum() or c in "-_." else "_" for c in text).strip("._")
    while len(kept.encode()) > MOST_KEY:
        kept = kept[:-1]
    if kept and kept == text:
        return text  # itself, so that a class's names are in memory once
    return f"{kept}-{digest(text)}" if kept else digest(text)


def digest(text: str) -> str:
    """Return eight characters that tell texts apart."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
