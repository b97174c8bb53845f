"""The layouts of class downloads: which file or folder is whose.

Canvas: lib/content_zipper.rb; Moodle: mod/assign/downloader.php and the importer of feedback in
feedback/file/importziplib.php, which takes folders with and without the last underscore.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from grader.classroom.collect.model import CollectError, Student
from grader.classroom.collect.source import Source
from grader.classroom.people import id_key
from grader.intake.entries import IntakeError

METADATA = "submission_metadata.yml"
# Canvas calls the second lab.tar.gz of a student lab.tar-1.gz.
_ARCHIVE = re.compile(r"(?i)\.(?:zip|tgz|ipynb|rar|7z|tar|tar(?:-\d+)?\.(?:gz|bz2|xz))\Z")


@dataclass(frozen=True, slots=True)
class Claim:
    """One file or folder of the download, and whose it is.

    Attributes:
        path: in the source.
        key: the same for everything that belongs to one submission.
        target: the name of a file within the submission; "" for a folder or as it is called.
        attempt: the latest attempt of a key is graded.
        handed_in: when, where that is not the attempt.
        number: the platform's of this file, where a higher one came later, or "".
        text: True for a page of text or a link, which holds no code.
        folder: True for a folder.
    """

    path: str
    key: str
    students: tuple[Student, ...] = ()
    target: str = ""
    late: bool | None = None
    upload: str = ""
    attempt: str = ""
    text: bool = False
    folder: bool = False
    notes: tuple[str, ...] = ()
    number: str = ""
    handed_in: str = ""


@dataclass
class Layout:
    """A layout that was recognised, by what, and what it makes of the names."""

    name: str
    why: str
    claims: list[Claim]
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Form(NamedTuple):
    """What names a platform gives to files or folders; `_claim` says what the groups mean.

    Attributes:
        layout: of the platform.
        words: the form, for a person.
        pattern: of a whole name.
        upload: how the name of a file of feedback begins, by the groups.
        folders: whether folders have such names, too.
    """

    layout: str
    words: str
    pattern: re.Pattern[str]
    upload: str = ""
    folders: bool = False


_CANVAS = "<name>_<user id>_<attachment id>_<file>"
# To add a platform that tells by names whose a file is: add its form.
FORMS = (
    Form(
        "Moodle", "_<id>_assignsubmission_file",
        re.compile(
            r"(?s)(?P<name>.*?)_(?P<platform_id>\d+)_assignsubmission_(?:file|(?P<text>[a-z]+))"
            r"(?:_(?P<file>.*))?"
        ),
        "{name}_{platform_id}_assignsubmission_file_", folders=True,
    ),
    Form(
        "Blackboard", "_<user>_attempt_<time>",
        re.compile(
            r"(?s)(?P<student_id>.+_[^_]+)_attempt_(?P<timestamp>\d{4}(?:-\d\d){5})"
            r"(?:_(?P<file>.+)|(?P<text>\.txt))"
        ),
    ),
    Form(
        "Canvas", _CANVAS,
        re.compile(
            r"(?is)(?P<late>late_)?(?P<student_id>anon_[^\W_]+)_"
            r"(?:(?P<number>\d+)_(?P<file>.+)|(?P<text>(?:text|link)\.html))"
        ),
        "{late}{student_id}_{number}_",
    ),
    Form(
        "Canvas", _CANVAS,
        re.compile(
            r"(?is)(?P<name>.+?)(?P<late>_late)?_(?P<platform_id>\d+)_"
            r"(?:(?P<number>\d+)_(?P<file>.+)|(?P<text>(?:text|link)\.html))"
        ),
        "{name}{late}_{platform_id}_{number}_",
    ),
)  # fmt: skip


def _claim(path: str, groups: Mapping[str, str | None], **more: Any) -> Claim:
    """Return the claim that the groups of a pattern make.

    Args:
        path: in the source.
        groups: `student_id` or `platform_id`; perhaps `name` or `first_name` and `last_name`,
            `email`, `late`, `timestamp` and `number` (of which the latest is graded), `file`, the
            name within the submission, and `text`, which says that this holds no code.
        more: attributes of the claim.
    """
    texts = defaultdict(str, {name: text or "" for name, text in groups.items()})
    full = f"{texts['first_name']} {texts['last_name']}".strip()
    name = texts["name"] or full
    user = texts["student_id"]
    student = Student(
        texts["platform_id"],
        (user,) if user else (),
        # Moodle calls everybody so where the grading is blind.
        "" if name.casefold() == "participant" else name,
        texts["email"],
    )
    known: dict[str, Any] = {
        "key": texts["platform_id"] or user,
        "students": (student,),
        "target": texts["file"],
        "late": bool(texts["late"]) if "late" in groups else None,
        "attempt": texts["timestamp"],
        "number": texts["number"],
        "text": bool(texts["text"]),
    }
    return Claim(path, **(known | more))


def _by_form(form: Form, name: str, is_folder: bool) -> Claim | None:
    """Read a name of the form."""
    found = None if is_folder and not form.folders else form.pattern.fullmatch(name)
    if not found:
        return None
    groups = found.groupdict()
    upload = ""
    if is_folder:
        upload = f"{name}/"
    elif groups.get("number", "") is not None:
        upload = form.upload.format(**{key: text or "" for key, text in groups.items()})
    return _claim(name, groups, upload=upload, folder=is_folder)


def by_names(tops: Mapping[str, bool]) -> Layout | None:
    """Recognise a platform by the names at the top, if half of them at least are of its form."""
    for layout, words in {form.layout: form.words for form in FORMS}.items():
        forms = [form for form in FORMS if form.layout == layout]
        claims = {
            name: next(filter(None, (_by_form(form, name, folder) for form in forms)), None)
            for name, folder in tops.items()
        }
        found = [claim for claim in claims.values() if claim]
        if found and len(found) * 2 >= len(tops):
            why = f"{len(found)} of {len(tops)} names have the form {words}"
            return Layout(layout, why, found, [n for n, claim in claims.items() if not claim])
    return None


def is_class(tops: Mapping[str, bool]) -> bool:
    """Tell whether names are those of a class rather than of one submission."""
    if METADATA in tops or by_names(tops):
        return True
    if "transformer" in tops or any(name.endswith(".py") for name in tops):
        return False
    return sum(is_folder or bool(stem_of(name)) for name, is_folder in tops.items()) > 1


def clones(tops: Mapping[str, bool], source: Source, known: Set[str]) -> Layout | None:
    """Recognise clones of one assignment's repositories: folders with a .git in them.

    Args:
        tops: the names at the top.
        source: where they lie.
        known: what the roster calls students; it decides where in a name the user begins.
    """
    folders = [name for name, is_folder in tops.items() if is_folder]
    places = {name: source.location(f"{name}/.git") for name in folders}
    cloned = [name for name, place in places.items() if place and place.exists()]
    if not cloned or len(cloned) * 2 < len(folders):
        return None
    prefix = prefix_before_students(folders, "-", known)
    claims = [
        Claim(name, name, (Student(ids=(name.removeprefix(prefix),)),), folder=True)
        for name in folders
    ]
    words = f"{len(cloned)} of {len(folders)} folders hold .git"
    why = f"{words}; user names follow {prefix}" if prefix else words
    layout = Layout("GitHub repositories", why, claims, [n for n in tops if n not in folders])
    if not known:
        layout.notes.append(
            "where in a repository's name the user begins was guessed: --roster decides it"
        )
    return layout


def prefix_before_students(names: Iterable[str], separator: str, known: Set[str]) -> str:
    """Return what stands before the student in names such as "lab-1-anna", or "".

    One prefix for all: two names that differ then never give the same student.

    Args:
        names: of one assignment.
        separator: what stands between assignment and student, and perhaps within both.
        known: what students are called, as `id_key` returns it; may be empty.
    """
    names = list(names)
    votes = Counter(
        name[: cut.end()]
        for name in names
        for cut in re.finditer(re.escape(separator), name)
        if id_key(name[cut.end() :]) in known
    )
    if votes:
        # Of equals the shortest: then "a_smith" is a_smith where there is a smith as well.
        return max(votes, key=lambda prefix: (votes[prefix], -len(prefix)))
    same = os.path.commonprefix(names) if len(names) > 1 else ""
    return same[: same.rfind(separator) + 1]


def named_students(layout: Layout, source: Source, known: Set[str]) -> Layout:
    """Tell assignment and user apart in the names of Blackboard, where both may hold "_".

    Args:
        layout: whose claims still have both in their key.
        source: holds the text that Blackboard lays beside each attempt: "Name: Ann Lee (alee)".
        known: what the roster calls students.
    """
    said = {claim.key: _introduced(claim, source) for claim in layout.claims if claim.text}
    known = known | {id_key(user) for user in said.values()}
    heads = {claim.key for claim in layout.claims}
    prefix = prefix_before_students(heads, "_", known)
    if not prefix and len(heads) == 1:
        prefix = re.sub(r"[^_]*\Z", "", next(iter(heads)))
    if not all(head.startswith(prefix) for head in heads):
        layout.notes.append(
            "the names of the files are of several assignments: students keep the whole name; "
            "--pattern can say where it begins"
        )
        return layout
    claims = []
    for claim in layout.claims:
        user = claim.key.removeprefix(prefix)
        claims.append(replace(claim, key=user, students=(Student(ids=(user,)),)))
    return replace(layout, claims=claims)


def _introduced(claim: Claim, source: Source) -> str:
    """Return the user as the text beside an attempt has it, in whatever language, or ""."""
    try:
        data = source.held(claim.path)[0].read(4096)
    except (IntakeError, OSError):
        return ""
    first = data.decode("utf-8-sig", "replace").split("\n", 1)[0].strip()
    found = re.search(r"\(([^()]+)\)\Z", first)
    # Only what the file's own name says too.
    return found[1] if found and claim.key.endswith(f"_{found[1]}") else ""


def folders_and_archives(tops: Mapping[str, bool]) -> Layout | None:
    """Take every folder and every archive at the top as one submission."""
    claims = []
    for name, is_folder in tops.items():
        stem = name if is_folder else stem_of(name)
        if stem:
            claims.append(Claim(name, stem, (Student(ids=(stem,)),), folder=is_folder))
    if not claims:
        return None
    kinds = sorted({tops[claim.path] for claim in claims})
    layout = ("folders" if kinds[0] else "archives") if len(kinds) == 1 else "folders and archives"
    claimed = {claim.path for claim in claims}
    why = f"{len(claims)} at the top, no platform's names"
    return Layout(layout, why, claims, [name for name in tops if name not in claimed])


def stem_of(name: str) -> str:
    """Return an archive's or notebook's name without its ending, or "" if it is neither."""
    found = _ARCHIVE.search(name)
    return name[: found.start()] if found else ""


def by_pattern(paths: Iterable[str], expression: str) -> Layout:
    """Claim the files whose path a regular expression matches.

    Args:
        paths: of all files, with slashes.
        expression: has a group `student_id`; may have the others of `_claim`. Without `file` it is
            what follows the match, else the file's own name.

    Raises:
        CollectError: the expression is none, or lacks the group.
    """
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise CollectError(f"--pattern is no regular expression: {error}") from None
    if "student_id" not in pattern.groupindex:
        raise CollectError("--pattern must have a group (?P<student_id>...)")
    layout = Layout("pattern", f"--pattern {expression}", [])
    for path in paths:
        found = pattern.match(path)
        if not found or not found["student_id"]:
            layout.ignored.append(path)
            continue
        groups = found.groupdict()
        rest = path[found.end() :].lstrip("/") or path.split("/")[-1]
        layout.claims.append(_claim(path, groups, target=groups.get("file") or rest))
    return layout
