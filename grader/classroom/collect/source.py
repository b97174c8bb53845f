"""A class as it lies there: a folder or one big zip, listed by names; contents are read later."""

from __future__ import annotations

import copy
import functools
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

from grader.base.settings import Staging
from grader.base.text import one_line
from grader.classroom.collect.model import CollectError
from grader.intake.entries import Entry, IntakeError, list_entries, read_file

# A class of 10,000 with 50 files each; more is no class.
MOST_MEMBERS = 500_000
JUNK = frozenset({
    "__MACOSX", "Thumbs.db", "desktop.ini", "__pycache__", ".DS_Store", ".git", ".gitignore",
    ".ipynb_checkpoints", ".venv", ".idea", ".vscode",
})  # fmt: skip


def is_junk(name: str) -> bool:
    """Tell whether a name is an operating system's or a tool's own."""
    return name in JUNK or name.startswith(("._", "~$"))


class FolderSource:
    """A folder of submissions."""

    def __init__(self, root: Path, limits: Staging) -> None:
        """List nothing yet."""
        self.root = root
        self.limits = limits
        self.refused: list[str] = []

    def inside(self, folder: str) -> FolderSource:
        """Return what lies in a folder at the top as a source of its own."""
        return FolderSource(self.root / folder, self.limits)

    def tops(self) -> dict[str, bool]:
        """Return the names at the top, and whether each is a folder; links are not followed."""
        found = {}
        self.refused = []
        for entry in os.scandir(self.root):
            if is_junk(entry.name):
                continue
            if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
                self.refused.append(f"{entry.name}: a link or special file")
            else:
                found[entry.name] = entry.is_dir()
        return dict(sorted(found.items()))

    def files(self) -> Iterator[str]:
        """Yield the paths of all files, in order."""
        for folder, names, files in os.walk(self.root):
            names[:] = sorted(name for name in names if not is_junk(name))
            for name in sorted(files):
                path = Path(folder, name)
                if not is_junk(name) and stat.S_ISREG(path.lstat().st_mode):
                    yield path.relative_to(self.root).as_posix()

    def held(self, path: str) -> list[Entry]:
        """Return the files of a folder, by paths within it, or the one file, by its name.

        Raises:
            IntakeError: the folder cannot be read, or holds more than a submission may.
        """
        here = self.root / path
        if here.is_dir():
            return [e for e in list_entries(here, self.limits) if e.kind == "file"]
        return [Entry(here.name, "file", functools.partial(read_file, here))]

    def location(self, path: str) -> Path | None:
        """Return where `path` lies on disk, or None."""
        return self.root / path

    def packed(self, path: str) -> tuple[str, str]:
        """Return the archive in which `path` lies, and where in it; "" and "" on disk."""
        return "", ""


class ZipSource:
    """One zip with all submissions; its methods are those of a folder."""

    def __init__(self, path: Path) -> None:
        """List the members.

        Raises:
            CollectError: it is no zip that can be read, or holds too much.
        """
        self.path = path
        self.folder = ""
        self.refused: list[str] = []
        # Of each top the files below it; "" = the top itself.
        self.members: dict[str, zipfile.ZipInfo] = {}
        self.folders: dict[str, list[str]] = {}
        try:
            self.archive = zipfile.ZipFile(path)
            members = self.archive.infolist()
        except Exception as error:  # zipfile raises whatever a malformed field provokes
            raise CollectError(f"{path} is no zip that can be read: {error}") from None
        if len(members) > MOST_MEMBERS:
            raise CollectError(f"{path} holds more than {MOST_MEMBERS} files: is it one class?")
        safe = {}
        for member in members:
            parts = member.filename.split("/")
            mode = member.external_attr >> 16
            if member.is_dir():
                continue
            if not _is_safe(parts) or (stat.S_IFMT(mode) and not stat.S_ISREG(mode)):
                self.refused.append(f"{member.filename}: an unsafe path or a special file")
            elif not any(map(is_junk, parts)):
                safe[member.filename] = member
        self._index(safe)

    def _index(self, members: dict[str, zipfile.ZipInfo]) -> None:
        self.members = dict(sorted(members.items(), key=lambda pair: pair[0].split("/")))
        self.folders = {}
        for name in self.members:
            top, slash, _ = name.partition("/")
            self.folders.setdefault(top if slash else "", []).append(name)

    def inside(self, folder: str) -> ZipSource:
        """Return what lies in a folder at the top as a source of its own."""
        inner = copy.copy(self)
        inner.folder = f"{self.folder}{folder}/"
        names = self.folders[folder]
        inner._index({name.partition("/")[2]: self.members[name] for name in names})
        return inner

    def tops(self) -> dict[str, bool]:
        """Return the names at the top, and whether each is a folder."""
        found = dict.fromkeys(filter(None, self.folders), True)
        found.update(dict.fromkeys(self.folders.get("", []), False))
        return dict(sorted(found.items()))

    def files(self) -> Iterator[str]:
        """Yield the paths of all files, in order."""
        return iter(self.members)

    def held(self, path: str) -> list[Entry]:
        """Return the files of a folder, by paths within it, or the one file, by its name."""
        if path in self.members:
            names, above = [path], path.rfind("/") + 1
        else:
            below = self.folders.get(path.partition("/")[0], [])
            names, above = [n for n in below if n.startswith(f"{path}/")], len(path) + 1
        return [Entry(n[above:], "file", functools.partial(self._read, n)) for n in names]

    def _read(self, name: str, size: int) -> bytes:
        try:
            with self.archive.open(self.members[name]) as file:
                return file.read(size)
        except Exception as error:  # as above
            last = one_line(name.rsplit("/", 1)[-1])
            raise IntakeError(f"{last} cannot be read: {error}") from None

    def location(self, path: str) -> Path | None:
        """Return None: nothing lies on disk."""
        return None

    def packed(self, path: str) -> tuple[str, str]:
        """Return the zip, and the whole path in it."""
        return str(self.path), self.folder + path


Source = FolderSource | ZipSource


def _is_safe(parts: list[str]) -> bool:
    """Tell whether a member's path stays where it belongs, on any system."""
    bad = any(part in ("", ".", "..") or "\\" in part or "\x00" in part for part in parts)
    return not bad and not parts[0].endswith(":")


def open_source(path: Path, limits: Staging) -> Source:
    """Open a folder or zip of submissions.

    Raises:
        CollectError: it does not exist, cannot be read, or is neither.
    """
    if path.is_dir():
        return FolderSource(path, limits)
    if not path.exists():
        raise CollectError(f"{path} does not exist: expected a folder or .zip of submissions")
    if not zipfile.is_zipfile(path):
        raise CollectError(f"{path} is neither a folder nor a zip: unpack it into a folder first")
    return ZipSource(path)
