"""Where in a submission the package lies, and which of its files are taken.

Works on names alone; no content is read here.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from grader.base.settings import Staging
from grader.intake.entries import KNOWN, TOOL_FOLDERS, Entry, IntakeError

PACKAGE = "transformer"
MAX_WRAPPERS = 2
_NAMED = 5


@dataclass(frozen=True)
class Found:
    """An entry whose path is clean: no wrapper, link or trick in it."""

    parts: tuple[str, ...]
    entry: Entry

    @property
    def folder(self) -> tuple[str, ...]:
        """Return the parts before the name."""
        return self.parts[:-1]

    @property
    def name(self) -> str:
        """Return the last part."""
        return self.parts[-1]

    @property
    def path(self) -> str:
        """Return the parts as one string."""
        return "/".join(self.parts)


def wanted(tasks: tuple[str, ...]) -> str:
    """Say what a submission should hold."""
    return f"a folder {PACKAGE}/ with {', '.join(tasks)}"


def some(names: Iterable[str]) -> str:
    """Name a few, count the rest."""
    listed = sorted(set(names))
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more


def clean(entries: list[Entry], limits: Staging, notes: list[str]) -> list[Found]:
    """Drop what operating systems and tools leave behind, and note paths that lead elsewhere."""
    found: list[Found] = []
    outside: list[str] = []
    odd: list[str] = []
    for entry in entries:
        path = unicodedata.normalize("NFC", entry.path.replace("\\", "/"))
        parts = tuple(part for part in path.split("/") if part not in ("", "."))
        if path.startswith("/") or re.match(r"[A-Za-z]:", path) or ".." in parts:
            outside.append(_shown(path))
        elif not path.isprintable() or len(path.encode("utf-8", "replace")) > limits.max_path_bytes:
            odd.append(_shown(path))
        elif parts and not any(part.startswith(".") or part in TOOL_FOLDERS for part in parts):
            found.append(Found(parts, entry))
    if outside:
        notes.append(f"left out, because the path leads outside the submission: {some(outside)}")
    if odd:
        notes.append(f"left out, because the name is too long or not printable: {some(odd)}")
    return found


def _shown(path: str) -> str:
    shown = "".join(c if c.isprintable() else "?" for c in path)
    return shown if len(shown) <= 80 else shown[:77] + "..."


class Home(NamedTuple):
    """The folder that holds the task files; `loose` when it is not called transformer."""

    folder: tuple[str, ...]
    loose: bool


def locate(path: Path, found: list[Found], tasks: tuple[str, ...]) -> Home:
    """Return the outermost folder with task files, one called transformer before any other.

    Raises:
        IntakeError: there is none, or there are several.
    """
    holding = {f.folder for f in found if f.entry.kind == "file" and resembles(f.name, tasks)}
    named = {h for h in holding if (h or path.absolute().parts)[-1].casefold() == PACKAGE}
    for candidates in (named, holding - named):
        # A folder called transformer may lie one deeper: the others stand for its own files.
        deepest = MAX_WRAPPERS + (candidates is named)
        near = [c for c in candidates if len(c) <= deepest]
        nearest = min(map(len, near), default=0)
        best = sorted(c for c in near if len(c) == nearest)
        if len(best) > 1:
            names = some("/".join(c) for c in best)
            raise IntakeError(f"{path} holds {len(best)} trees: {names}; name the one to grade")
        if best:
            return Home(best[0], candidates is not named)
    linked = [f.path for f in found if f.entry.kind == "link" and f.name == PACKAGE]
    if linked:
        raise IntakeError(
            f"{path}: {linked[0]} is a link, and no link is followed: copy the folder"
        )
    what = some(f.parts[0] + ("/" if f.folder else "") for f in found) or "nothing of use"
    raise IntakeError(
        f"{path} does not look like this lab: expected {wanted(tasks)} (in {KNOWN}), found {what}"
    )


def choose(found: list[Found], home: Home, notes: list[str]) -> list[Found]:
    """Return the Python files of the package; note what else it holds, and what lies beside it.

    Raises:
        IntakeError: two names differ only in case, and neither is the lower one.
    """
    folder, loose = home
    inside = [f for f in found if f.parts[: len(folder)] == folder]
    if loose:
        inside = [f for f in inside if f.folder == folder]
    files = [f for f in inside if f.entry.kind == "file"]
    python = [f for f in files if f.name.endswith(".py")]
    links = [f.path for f in inside if f.entry.kind == "link"]
    special = [f.path for f in inside if f.entry.kind == "special"]
    named = (".py", "py.typed")  # the latter is given, empty, and of use to type checkers alone
    other = [] if loose else [f.path for f in files if not f.name.endswith(named)]
    if links:
        notes.append(f"links are not followed and were left out: {some(links)}")
    if special:
        notes.append(f"left out, because they are no ordinary files: {some(special)}")
    if other:
        notes.append(f"only .py files are graded; left out: {some(other)}")
    if folder and not loose:
        beside = [f.name for f in found if f.folder == folder[:-1] and f.name.endswith(".py")]
        notes += _on_neighbours(beside)
    return _without_collisions(python, notes)


def _on_neighbours(names: list[str]) -> list[str]:
    known = sys.stdlib_module_names | {"torch", "numpy"}
    hiding = [name for name in names if name.removesuffix(".py") in known]
    others = [name for name in names if name not in hiding]
    notes = []
    if hiding:
        text = "beside the package, where it cannot stand in for the module of that name"
        notes.append(f"left out, because it lies {text}: {some(hiding)}")
    if others:
        notes.append(f"outside {PACKAGE}/ and not graded (move in what is needed): {some(others)}")
    return notes


def _without_collisions(files: list[Found], notes: list[str]) -> list[Found]:
    """Keep one of the files whose names differ only in case: the one in lower case."""
    groups: dict[str, list[Found]] = {}
    for file in files:
        groups.setdefault(file.path.casefold(), []).append(file)
    kept: list[Found] = []
    for same in groups.values():
        names = sorted({file.path for file in same})
        lower = [file for file in same if file.name == file.name.casefold()]
        if len(names) > 1 and len({file.path for file in lower}) != 1:
            raise IntakeError(f"names that differ only in case: {some(names)}; keep one of them")
        if len(names) > 1:
            dropped = [name for name in names if name != lower[0].path]
            notes.append(f"left out, because {lower[0].path} has the same letters: {some(dropped)}")
        kept += lower if len(names) > 1 else same
    return kept


def resembles(name: str, tasks: tuple[str, ...]) -> str | None:
    """Return the task file that `name` is, or was before somebody's program renamed it."""
    stem = re.sub(r"\.txt$", "", name.casefold()).removesuffix(".py")
    if stem == name.casefold():
        return None
    stem = re.sub(r"^copy of |[\s_-]*(\(\d+\)|copy|kopie|\d+)$", "", stem.strip())
    return f"{stem}.py" if f"{stem}.py" in tasks else None
