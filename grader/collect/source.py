"""A class as it lies there: a folder or one big zip, listed by names; contents are read later."""

from __future__ import annotations

import copy
import functools
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from grader.collect.model import CollectError, Piece
from grader.entries import list_entries, stamp_of
from grader.settings import Staging

# A class of 10,000 with 50 files each; more is no class.
MOST_MEMBERS = 500_000
JUNK = frozenset({
    "__MACOSX", "Thumbs.db", "desktop.ini", "__pycache__", ".DS_Store", ".git", ".gitignore",
    ".ipynb_checkpoints", ".venv", ".idea", ".vscode",
})  # fmt: skip


class Held(NamedTuple):
    """The files below a path, and stamps of all that lies there, links and pipes too."""

    pieces: list[Piece]
    stamps: list[tuple[str, tuple[int, ...]]]


class Source(Protocol):
    """Files by their paths; a path may be a folder's."""

    refused: list[str]

    def inside(self, folder: str) -> Source:
        """Return what lies in a folder at the top, as a source of its own."""

    def tops(self) -> dict[str, bool]:
        """Return the names at the top, and whether each is a folder."""

    def files(self) -> Iterator[str]:
        """Yield the paths of all files."""

    def held(self, path: str) -> Held:
        """Return the files of a folder, by paths within it, or the one file, by its name."""

    def has(self, path: str) -> bool:
        """Tell whether a file or folder lies at `path`."""

    def location(self, path: str) -> Path | None:
        """Return where `path` lies on disk, or None."""

    def packed(self, path: str) -> tuple[str, str]:
        """Return the archive in which `path` lies, and where in it; "" and "" on disk."""


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
        """Return a folder at the top as a source of its own."""
        return FolderSource(self.root / folder, self.limits)

    def tops(self) -> dict[str, bool]:
        """Return the names at the top; links are not followed."""
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

    def held(self, path: str) -> Held:
        """Return what lies below `path`.

        Raises:
            IntakeError: the folder cannot be read, or holds more than a submission may.
        """
        here = self.root / path
        if here.is_dir():
            found = list_entries(here, self.limits)
            pieces = [Piece(entry.path, entry.read) for entry in found if entry.kind == "file"]
            return Held(pieces, [(entry.path, entry.stamp) for entry in found])
        stamps = [(here.name, stamp_of(here.lstat()))]
        return Held([Piece(here.name, functools.partial(_read_file, here))], stamps)

    def has(self, path: str) -> bool:
        """Tell whether something lies there."""
        return (self.root / path).exists()

    def location(self, path: str) -> Path | None:
        """Return the path on disk."""
        return self.root / path

    def packed(self, path: str) -> tuple[str, str]:
        """Return nothing: it is on disk."""
        return "", ""


def _read_file(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


class ZipSource:
    """One zip with all submissions."""

    def __init__(self, path: Path) -> None:
        """List the members.

        Raises:
            CollectError: it is no zip that can be read, or holds too much.
        """
        self.path = path
        self.folder = ""
        self.refused: list[str] = []
        self.members: dict[str, int]
        self.folders: dict[str, list[str]]
        try:
            self.stamp = stamp_of(path.stat())
            members = open_zip(path, self.stamp).infolist()
        except Exception as error:  # zipfile raises whatever a malformed field provokes
            raise CollectError(f"{path} is no zip that can be read: {error}") from None
        if len(members) > MOST_MEMBERS:
            raise CollectError(f"{path} holds more than {MOST_MEMBERS} files: is it one class?")
        safe = {}
        for index, member in enumerate(members):
            parts = tuple(member.filename.split("/"))
            mode = member.external_attr >> 16
            if member.is_dir():
                continue
            if not _is_safe(parts) or (stat.S_IFMT(mode) and not stat.S_ISREG(mode)):
                self.refused.append(f"{member.filename}: an unsafe path or a special file")
            elif not any(is_junk(part) for part in parts):
                safe[parts] = index
        self._index(safe)

    def _index(self, members: dict[tuple[str, ...], int]) -> None:
        self.members, self.folders = {}, {}
        for parts, index in sorted(members.items()):
            name = "/".join(parts)
            self.members[name] = index
            self.folders.setdefault(parts[0] if len(parts) > 1 else "", []).append(name)

    def inside(self, folder: str) -> ZipSource:
        """Return a folder at the top as a source of its own."""
        inner = copy.copy(self)
        inner.folder = f"{self.folder}{folder}/"
        names = self.folders[folder]
        inner._index({tuple(name.split("/")[1:]): self.members[name] for name in names})
        return inner

    def tops(self) -> dict[str, bool]:
        """Return the names at the top."""
        found = dict.fromkeys((name for name in self.folders if name), True)
        found.update(dict.fromkeys(self.folders.get("", []), False))
        return dict(sorted(found.items()))

    def files(self) -> Iterator[str]:
        """Yield the paths of all files."""
        return iter(self.members)

    def held(self, path: str) -> Held:
        """Return the files below `path`."""
        if path in self.members:
            return Held([Piece(path.rsplit("/", 1)[-1], self._reader(path))], self._stamps([path]))
        prefix = f"{path}/"
        top = self.folders.get(path.split("/")[0], [])
        names = [name for name in top if name.startswith(prefix)]
        pieces = [Piece(name.removeprefix(prefix), self._reader(name)) for name in names]
        return Held(pieces, self._stamps(names))

    def _reader(self, name: str) -> functools.partial[bytes]:
        return functools.partial(_read_member, self.path, self.stamp, self.members[name])

    def _stamps(self, names: list[str]) -> list[tuple[str, tuple[int, ...]]]:
        return [("", self.stamp), *((f"{self.members[name]} {name}", ()) for name in names)]

    def has(self, path: str) -> bool:
        """Tell whether a file or a folder lies there."""
        return path in self.members or bool(self.held(path).pieces)

    def location(self, path: str) -> Path | None:
        """Return None: nothing lies on disk."""
        return None

    def packed(self, path: str) -> tuple[str, str]:
        """Return the zip, and the whole path in it."""
        return str(self.path), self.folder + path


@functools.lru_cache(maxsize=2)
def open_zip(path: Path, stamp: tuple[int, ...]) -> zipfile.ZipFile:
    """Return the zip, open for reading; the directory of a large one is read once only."""
    assert stamp  # tells a zip from another that took its place
    return zipfile.ZipFile(path)


def _read_member(path: Path, stamp: tuple[int, ...], index: int, size: int) -> bytes:
    archive = open_zip(path, stamp)
    with archive.open(archive.infolist()[index]) as file:
        return file.read(size)


def _is_safe(parts: tuple[str, ...]) -> bool:
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
