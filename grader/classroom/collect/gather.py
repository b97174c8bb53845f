"""From claims on files to submissions, and from a submission to a path that can be staged."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from grader.base.settings import Settings, Staging
from grader.base.text import one_line
from grader.classroom.collect.layouts import Claim, Layout, stem_of
from grader.classroom.collect.model import Collected, Report, Student, digest, safe_key
from grader.classroom.collect.source import Source
from grader.classroom.people import id_key
from grader.intake import staging
from grader.intake.entries import Entry, IntakeError, list_archive, too_many
from grader.intake.staging import Staged

_RESUBMITTED = re.compile(r"-\d+(?=\.[^.]+\Z)")
# Our disk is to blame, and no submission.
NO_ROOM = {errno.ENOSPC, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC)}


def gather(source: Source, layout: Layout, settings: Settings) -> tuple[list[Collected], Report]:
    """Turn the claims of a layout into submissions, sorted by key."""
    report = Report(layout.name, layout.why, notes=list(layout.notes))
    report.ignored = [one_line(name) for name in layout.ignored]
    points = settings.points
    expected = {stub.file for stub in points.stubs} | {stub.file for stub in points.stretch}
    groups: dict[str, list[Claim]] = {}
    for claim in layout.claims:
        groups.setdefault(claim.key, []).append(claim)
    submissions = []
    taken: set[str] = set()
    for raw in sorted(groups):
        key = safe_key(raw)
        if id_key(key) in taken:  # one folder where letters' case or marks do not count
            key = f"{key}-{digest(raw)}"
        taken.add(id_key(key))
        one = Collected(key, _students(groups[raw]), None)
        submissions.append(_Gathering(source, one, expected, report).of(groups[raw]))
    report.refused += [one_line(text) for text in source.refused]
    report.submissions = len(submissions)
    report.late = [one.who for one in submissions if one.late]
    return sorted(submissions, key=lambda one: one.key), report


def _students(claims: list[Claim]) -> tuple[Student, ...]:
    """Return whose claims these are; of several readings of one student, that which says most."""
    found = tuple(dict.fromkeys(student for claim in claims for student in claim.students))
    if len(found) > 1 and all(len(claim.students) <= 1 for claim in claims):
        return (max(found, key=lambda s: (bool(s.platform_id), len(s.name), s.name, s.ids)),)
    return found


@dataclass
class _Gathering:
    """The making of one submission, with what is said of it there and in the report."""

    source: Source
    one: Collected
    expected: Set[str]
    report: Report
    notes: list[str] = field(default_factory=list)

    def _say(self, kind: str, sentence: str) -> None:
        self.notes.append(sentence)
        getattr(self.report, kind).append(f"{self.one.who}: {sentence}")

    def of(self, claims: list[Claim]) -> Collected:
        """Return the submission that the claims make."""
        self.notes = list(dict.fromkeys(note for claim in claims for note in claim.notes))
        upload = next((claim.upload for claim in claims if claim.upload), "")
        latest = max((claim.attempt for claim in claims), key=_order)
        files = [claim for claim in claims if claim.attempt == latest and not claim.text]
        if len({claim.attempt for claim in claims}) > 1:
            self._say("duplicated", f"several attempts: the latest, {one_line(latest)}, is graded")
        if any(claim.text for claim in claims) and not files:
            self.notes.append("a text or a link was handed in, no files")
        else:
            whole = [claim for claim in files if not claim.target]
            if len(whole) > 1:
                self._say("duplicated", twice(whole))
            every = whole[:1] or files
            files, left = newest(every, self.expected)
            for same in left:
                self._say("duplicated", twice(same))
            if left:  # feedback belongs to a file that still counts
                upload = next(claim.upload for claim in claims if claim in files)
            try:
                self._resolve(files)
            except IntakeError as error:
                self.notes.append(one_line(str(error)))
        late = None if claims[0].late is None else any(claim.late for claim in claims)
        when = next((claim.handed_in for claim in claims if claim.handed_in), latest)
        return replace(self.one, late=late, upload=upload, notes=tuple(self.notes), handed_in=when)

    def _resolve(self, files: list[Claim]) -> None:
        """Find what is to be read: a folder or archive where it lies, or the pieces of it."""
        pieces: list[Entry] = []
        for claim in files:
            found = self.source.held(claim.path)
            if claim.target:
                target = original(claim.target, self.expected)
                if target != claim.target:
                    renamed = f"{one_line(claim.target)} is {target}, which the platform renamed"
                    self._say("renamed", renamed)
                found = [replace(entry, path=target) for entry in found]
            pieces += found
        containers = [p for p in pieces if stem_of(p.path)]
        has_code = any(p.path.rsplit("/", 1)[-1] in self.expected for p in pieces)
        only = files[0] if len(files) == 1 else None
        lies = only.path if only else ""
        if only and only.folder and containers and not has_code:
            name = one_line(containers[0].path)
            self._say("nested", f"an archive within the folder was opened: {name}")
            lies = f"{lies}/{containers[0].path}" if len(containers) == 1 else ""
        elif only and only.folder:
            pieces = [piece for piece in pieces if piece not in containers]
            containers = []
        elif only and only.target and not containers:
            lies = ""
        # Notebooks are handed in by the dozen, each with files of its own.
        archives = [one_line(p.path) for p in containers if not p.path.lower().endswith(".ipynb")]
        if len(archives) > 1:
            self._say(
                "duplicated",
                "several archives: a file that more than one holds is taken from "
                + ", then ".join(archives),
            )
        here = self.source.location(lies) if lies else None
        self.one = replace(
            self.one,
            path=here,
            pieces=() if here else tuple(pieces),
            packed=self.source.packed(lies) if lies else ("", ""),
        )


def original(name: str, expected: Set[str]) -> str:
    """Undo a platform's "-1" where that gives a file that is expected."""
    plain = _RESUBMITTED.sub("", name)
    return plain if plain in expected else name


def newest(files: list[Claim], expected: Set[str]) -> tuple[list[Claim], list[list[Claim]]]:
    """Take the newest of the files that were called the same; without numbers, take all.

    Args:
        files: of one submission.
        expected: the names of the lab's files.

    Returns:
        What is taken, the newest first, and each group of files that were called the same.
    """
    if not all(claim.number for claim in files):
        return files, []
    # A student's own part-1.zip and part-2.zip stay two: nothing is called part.zip.
    names = expected | {claim.target for claim in files}
    groups: dict[str, list[Claim]] = {}
    for claim in sorted(files, key=lambda claim: _order(claim.number), reverse=True):
        groups.setdefault(original(claim.target, names), []).append(claim)
    return [same[0] for same in groups.values()], [g for g in groups.values() if len(g) > 1]


def _order(text: str) -> str:
    """Return what orders texts by the numbers in them: 9 comes before 10."""
    return re.sub(r"\d+", lambda number: number[0].zfill(255), text)


def twice(same: list[Claim]) -> str:
    """Say which of several is graded."""
    taken, *left = (one_line(claim.path) for claim in same)
    return f"came more than once: {taken} is graded, not {', '.join(left)}"


def examine(one: Collected, settings: Settings, notes: list[str]) -> Staged:
    """Read a submission, as `grader.intake.staging` reads a path; nothing is unpacked or written.

    Args:
        one: what `collect` returned.
        settings: hold the task files and the limits.
        notes: takes sentences on what was done to get at the files.

    Raises:
        IntakeError: there is nothing to grade, it is too large, or it cannot be read.
    """
    if one.path is not None:
        return replace(staging.examine(one.path, settings), name=one.key)
    if not one.pieces:
        raise IntakeError(one.notes[-1] if one.notes else "nothing was handed in")
    home = Path(one.key)
    limits = settings.staging
    containers = [p for p in one.pieces if stem_of(p.path)]
    if len(containers) == 1 and not any(p.path.endswith(".py") for p in one.pieces):
        home /= containers[0].path
        entries = list_archive(home, containers[0].read, limits)
    else:
        entries = _merged(one.pieces, containers, limits, notes)
    if len(entries) > limits.max_archive_entries:
        raise too_many(home, limits)
    entries.sort(key=lambda entry: entry.path)
    return replace(staging.examine_entries(home, entries, settings), name=one.key)


def _merged(
    pieces: Sequence[Entry], containers: list[Entry], limits: Staging, notes: list[str]
) -> list[Entry]:
    """Return the loose files and those of the archives, of each path the first that came."""
    groups = [("the loose file", [piece for piece in pieces if piece not in containers])]
    for container in containers:
        name = one_line(container.path)
        inside = list_archive(Path(container.path), container.read, limits)
        groups.append((f"that of {name}", [entry for entry in inside if entry.kind == "file"]))
        notes.append(f"{name} was opened")
    found: dict[str, tuple[Entry, str]] = {}
    most = limits.max_file_kib * 1024 + 1
    for origin, entries in groups:
        for entry in entries:
            first, whence = found.setdefault(entry.path, (entry, origin))
            if first is not entry and first.read(most) != entry.read(most):
                notes.append(f"{one_line(entry.path)} came twice: {whence} is used")
    return [entry for entry, _ in found.values()]
