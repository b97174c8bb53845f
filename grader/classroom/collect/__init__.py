"""Class intake: every form in which the platforms hand out a class's submissions.

    collection = collect(Path("submissions.zip"), settings)
    for one in collection.submissions:
        staged = examine(one, settings, notes)

`collect` reads names only; `examine` reads one submission, within the limits of lab.toml, and
raises IntakeError for that one alone. Nothing is ever unpacked.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from grader.base.settings import Settings
from grader.classroom.collect.gather import examine, gather
from grader.classroom.collect.gradescope import gradescope
from grader.classroom.collect.layouts import (
    METADATA,
    Layout,
    by_names,
    by_pattern,
    clones,
    folders_and_archives,
    is_class,
    named_students,
)
from grader.classroom.collect.model import Collected, CollectError, Collection, Report, Student
from grader.classroom.collect.roster import Roster, RosterError, compare, read_roster
from grader.classroom.collect.source import Source, open_source
from grader.classroom.people import id_key

__all__ = [
    "CollectError",
    "Collected",
    "Collection",
    "Report",
    "Roster",
    "RosterError",
    "Student",
    "collect",
    "examine",
    "read_roster",
]


def collect(
    source: Path, settings: Settings, roster: Roster | None = None, pattern: str | None = None
) -> Collection:
    """List the submissions of a class.

    Args:
        source: a folder or zip: of folders, of archives, or as Canvas, Moodle, Gradescope,
            Blackboard or GitHub hand it out.
        settings: hold the task files and the limits.
        roster: who should have handed in; it also decides where a name is not clear.
        pattern: a regular expression over paths, for any other layout (see `by_pattern`).

    Raises:
        CollectError: there is no class, or its layout is not known.
    """
    opened = open_source(source, settings.staging)
    try:
        if pattern:
            layout = by_pattern(opened.files(), pattern)
        else:
            opened = unwrapped(opened)
            students = roster.students if roster else []
            known = {id_key(text) for student in students for text in student.ids if text}
            layout = detect(opened, source, settings, known)
    except OSError as error:
        raise CollectError(f"{source} cannot be read: {error.strerror or error}") from None
    if not layout.claims:
        raise CollectError(f"{source}: no submission was found; layout {layout.name}: {layout.why}")
    submissions, report = gather(opened, layout, settings)
    if roster is None:
        return Collection(submissions, report)
    return compare(submissions, roster, report)


def unwrapped(opened: Source) -> Source:
    """Return the class that lies in the only folder, if one does: many like to wrap a download."""
    tops = opened.tops()
    if list(tops.values()) == [True]:
        inner = opened.inside(next(iter(tops)))
        if is_class(inner.tops()):
            return inner
    return opened


def detect(opened: Source, path: Path, settings: Settings, known: Set[str]) -> Layout:
    """Recognise the layout by what lies at the top.

    Raises:
        CollectError: it is empty, a single submission, or of no known layout.
    """
    tops = opened.tops()
    if not tops:
        raise CollectError(f"{path} is empty: expected one folder or archive for each student")
    tasks = {stub.file for stub in settings.points.stubs}
    if tasks & set(tops) or set(tops) == {"transformer"}:
        raise CollectError(f"{path} is one submission, not a class: use the command grade")
    layout = (
        gradescope(tops, opened)
        or by_names(tops)
        or clones(tops, opened, known)
        or folders_and_archives(tops)
    )
    if layout is None:
        names = ", ".join(list(tops)[:5])
        raise CollectError(
            f"{path} has no layout that is known (found {names}): expected a folder or archive "
            f"for each student, a platform's download, {METADATA}, or --pattern"
        )
    return named_students(layout, opened, known) if layout.name == "Blackboard" else layout
