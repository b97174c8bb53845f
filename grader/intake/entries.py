"""What a submission consists of, as one list of entries: from a folder, an archive or a notebook.

Nothing is unpacked, run or followed here. An entry's content is read later, up to a limit.
"""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path

from grader.base.settings import Staging
from grader.intake.archives import list_archive
from grader.intake.entry import KNOWN, Entry, IntakeError, kind_of, too_many

__all__ = ["KNOWN", "TOOL_FOLDERS", "Entry", "IntakeError", "list_entries", "only_archive",
           "read_file"]  # fmt: skip

_MAX_DEPTH = 8
# Folders of tools, never of a submission; with these in it a folder could take minutes to list.
TOOL_FOLDERS = frozenset({"__MACOSX", "__pycache__", "node_modules", "site-packages", "venv"})
_ENDINGS = (".zip", ".tar.gz", ".tgz", ".tar", ".ipynb")


def list_entries(path: Path, limits: Staging) -> list[Entry]:
    """List what lies in `path`, sorted by path.

    Raises:
        IntakeError: the path does not exist, cannot be read, or is of no known kind.
    """
    try:
        if path.is_dir():
            entries = _folder(path, limits)
        elif path.exists():
            if not path.is_file():
                raise IntakeError(f"{path} is neither a file nor a folder: expected {KNOWN}")
            entries = list_archive(path, functools.partial(read_file, path), limits)
        else:
            raise IntakeError(f"{path} does not exist: expected {KNOWN}")
    except OSError as error:
        raise _unreadable(path, error) from None
    return sorted(entries, key=lambda entry: entry.path)


def only_archive(entries: list[Entry]) -> Entry | None:
    """Return the archive or notebook that stands for the code: one, and no Python file beside."""
    files = [e for e in entries if e.kind == "file" and _worth_reading(e.path.split("/"))]
    archives = [entry for entry in files if entry.path.lower().endswith(_ENDINGS)]
    if len(archives) != 1 or any(entry.path.endswith(".py") for entry in files):
        return None
    return archives[0]


def _worth_reading(parts: list[str]) -> bool:
    return not any(p in TOOL_FOLDERS or (p.startswith(".") and p != ".") for p in parts)


def _unreadable(path: Path | str, error: OSError) -> IntakeError:
    name = error.filename or path
    if isinstance(error, PermissionError):
        return IntakeError(f"no permission to read {name}: change its mode, or copy it")
    return IntakeError(f"{name} cannot be read: {error.strerror or error}")


def _folder(root: Path, limits: Staging) -> list[Entry]:
    entries: list[Entry] = []
    # Strings, since a class has many files: a Path for each would take most of the time.
    folders = [(str(root), "", 0)]
    while folders:
        folder, above, depth = folders.pop()
        with os.scandir(folder) as found:
            for each in found:
                status = each.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    if _worth_entering(each.name, depth):
                        folders.append((each.path, f"{above}{each.name}/", depth + 1))
                    continue
                read = functools.partial(read_file, each.path)
                kind = kind_of(status.st_mode)
                entries.append(Entry(above + each.name, kind, read))
                if len(entries) > limits.max_archive_entries:
                    raise too_many(root, limits)
    return entries


def _worth_entering(name: str, depth: int) -> bool:
    return not name.startswith(".") and name not in TOOL_FOLDERS and depth < _MAX_DEPTH


def read_file(path: Path | str, size: int) -> bytes:
    """Return at most so many bytes of a file.

    Raises:
        IntakeError: it cannot be read.
    """
    # Neither a link nor a pipe that took the file's place since may be followed or waited for.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    flags |= getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            return file.read(size)
    except OSError as error:
        raise _unreadable(path, error) from None
