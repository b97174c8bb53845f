"""The layouts of class downloads: which file or folder is whose.

Canvas: lib/content_zipper.rb; Moodle: mod/assign/downloader.php and the importer of feedback in
feedback/file/importziplib.php, which takes folders with and without the last underscore.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from grader.collect.model import CollectError, Student
from grader.collect.source import Source

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


@dataclass
class Layout:
    """A layout that was recognised, by what, and what it makes of the names."""

    name: str
    why: str
    claims: list[Claim]
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


_CANVAS = re.compile(r"(?is)(.+?)(_late)?_(\d+)_(?:(\d+)_(.+)|(text|link)\.html)")
_CANVAS_ANONYMOUS = re.compile(r"(?is)(late_)?anon_([^\W_]+)_(?:(\d+)_(.+)|(text|link)\.html)")
_MOODLE = re.compile(r"(?s)(.*)_(\d+)_assignsubmission_([a-z]+)(?:_(.*))?")
_BLACKBOARD = re.compile(r"(?s)(.*)_([^_]+)_attempt_(\d{4}(?:-\d\d){5})(?:_(.+)|\.txt)")


def canvas(name: str, is_folder: bool) -> Claim | None:
    """Read a name of Canvas's flat download."""
    if is_folder:
        return None
    found = _CANVAS_ANONYMOUS.fullmatch(name)
    if found:
        late, user, attachment, file, _ = found.groups()
        student = Student(ids=(f"anon_{user}",))
        prefix = f"{late or ''}anon_{user}_{attachment}_"
        key = f"anon_{user}"
    else:
        found = _CANVAS.fullmatch(name)
        if not found:
            return None
        who, late, user, attachment, file, _ = found.groups()
        student = Student(platform_id=user, name=who)
        prefix = f"{who}{late or ''}_{user}_{attachment}_"
        key = user
    return Claim(
        name, key, (student,), file or "", late is not None, prefix if attachment else "",
        text=attachment is None, number=attachment or "",
    )  # fmt: skip


def moodle(name: str, is_folder: bool) -> Claim | None:
    """Read a name of Moodle's download, with folders or flat."""
    found = _MOODLE.fullmatch(name)
    if not found:
        return None
    who, user, plugin, rest = found.groups()
    blind = re.fullmatch(r"(?i)participant", who) is not None
    student = Student(platform_id=user, name="" if blind else who)
    upload = f"{name}/" if is_folder else f"{who}_{user}_assignsubmission_file_"
    return Claim(
        name, user, (student,), rest or "", None, upload, text=plugin != "file", folder=is_folder
    )


def blackboard(name: str, is_folder: bool) -> Claim | None:
    """Read a name of Blackboard's flat download."""
    found = None if is_folder else _BLACKBOARD.fullmatch(name)
    if not found:
        return None
    _, user, attempt, file = found.groups()
    return Claim(
        name, user, (Student(ids=(user,)),), file or "", attempt=attempt, text=file is None
    )


Reader = Callable[[str, bool], Claim | None]
_FLAT: Mapping[str, tuple[Reader, str]] = {
    "Moodle": (moodle, "_<id>_assignsubmission_file"),
    "Blackboard": (blackboard, "_<user>_attempt_<time>"),
    "Canvas": (canvas, "<name>_<user id>_<attachment id>_<file>"),
}


def by_names(tops: Mapping[str, bool]) -> Layout | None:
    """Recognise a platform by the names at the top, if half of them at least are of its form."""
    for layout, (read, form) in _FLAT.items():
        claims = {name: read(name, is_folder) for name, is_folder in tops.items()}
        found = [claim for claim in claims.values() if claim]
        if found and len(found) * 2 >= len(tops):
            why = f"{len(found)} of {len(tops)} names have the form {form}"
            return Layout(layout, why, found, [n for n, claim in claims.items() if not claim])
    return None


def is_class(tops: Mapping[str, bool]) -> bool:
    """Tell whether names are those of a class rather than of one submission."""
    if METADATA in tops or by_names(tops):
        return True
    if "transformer" in tops or any(name.endswith(".py") for name in tops):
        return False
    return sum(is_folder or bool(stem_of(name)) for name, is_folder in tops.items()) > 1


def clones(tops: Mapping[str, bool], source: Source) -> Layout | None:
    """Recognise clones of GitHub Classroom: folders of one prefix with a .git in them."""
    folders = [name for name, is_folder in tops.items() if is_folder]
    cloned = [name for name in folders if source.has(f"{name}/.git")]
    if not cloned or len(cloned) * 2 < len(folders):
        return None
    prefix = _prefix(folders)
    claims = [
        Claim(name, name, (Student(ids=(name.removeprefix(prefix),)),), folder=True)
        for name in folders
    ]
    words = f"{len(cloned)} of {len(folders)} folders hold .git"
    why = f"{words}; user names follow {prefix}" if prefix else words
    return Layout("GitHub Classroom", why, claims, [n for n in tops if n not in folders])


def _prefix(names: list[str]) -> str:
    """Return what all names start with, up to a hyphen."""
    if len(names) < 2:
        return ""
    first, last = min(names), max(names)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    return first[: first[:same].rfind("-") + 1]


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
        expression: has a group `student_id`; may have `name`, `first_name`, `last_name`, `email`,
            `timestamp`, `late`, and `file`, the name within the submission (else what follows
            the match, else the file's own name).

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
        groups = {name: text or "" for name, text in found.groupdict().items()}
        full = " ".join(filter(None, (groups.get("first_name"), groups.get("last_name"))))
        user, email = groups["student_id"], groups.get("email", "")
        student = Student("", (user,), groups.get("name") or full, email)
        target = groups.get("file") or path[found.end() :].lstrip("/") or path.split("/")[-1]
        late = bool(groups["late"]) if "late" in groups else None
        attempt = groups.get("timestamp", "")
        layout.claims.append(Claim(path, user, (student,), target, late, attempt=attempt))
    return layout
