"""What a submission consists of, as one list of entries: from a folder, an archive or a notebook.

Nothing is unpacked, run or followed here. An entry's content is read later, up to a limit.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import os
import stat
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grader.base.settings import Staging

KNOWN = "a folder, .zip, .tar.gz, .tgz, .tar or .ipynb"
# Folders of tools, never of a submission; with these in it a folder could take minutes to list.
TOOL_FOLDERS = frozenset({"__MACOSX", "__pycache__", "node_modules", "site-packages", "venv"})
_MAX_DEPTH = 8
_ENDINGS = (".zip", ".tar.gz", ".tgz", ".tar", ".ipynb")
# An archive may carry this many times what is staged of it: pictures, notebooks, a history.
_ROOM = 16
_GZIP = b"\x1f\x8b"
_SIGNATURES = {
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    _GZIP: "tar",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ\x00": "an xz archive",
    b"Rar!": "a RAR archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"%PDF": "a PDF document",
}


class IntakeError(Exception):
    """There is nothing that can be graded; the message says what was expected and what came."""


Kind = Literal["file", "link", "special"]


@dataclass(frozen=True)
class Entry:
    """One file, link or special file; `read(n)` returns at most n bytes of a file."""

    path: str
    kind: Kind
    read: Callable[[int], bytes]


def list_entries(path: Path, limits: Staging) -> list[Entry]:
    """List what lies in `path`, sorted by path.

    Raises:
        IntakeError: the path does not exist, cannot be read, or is of an unknown type.
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


def list_archive(path: Path, read: Callable[[int], bytes], limits: Staging) -> list[Entry]:
    """List the entries of an archive, by what it is rather than by what it is called.

    Args:
        path: what it is called in messages.
        read: returns at most so many bytes of it.
        limits: of what it may hold.

    Raises:
        IntakeError: it is of an unknown type, damaged or too large.
    """
    room = _ROOM * limits.max_total_kib * 1024
    data = read(room + 1)
    if len(data) > room:
        raise IntakeError(
            f"{path} is larger than {room >> 20} MiB: a submission is some hundred KiB; hand in "
            "the folder transformer/ only, without environments, data or history"
        )
    kind = next((k for mark, k in _SIGNATURES.items() if data.startswith(mark)), "")
    if data[257:262] == b"ustar":
        kind = "tar"
    if path.suffix.lower() == ".ipynb" and data.lstrip()[:1] == b"{":
        return _notebook(path, data)
    if kind == "zip":
        return _zip(path, data, limits)
    if kind == "tar":
        return _tar(path, data, room, limits)
    raise IntakeError(f"{path} is {kind or _describe(path, data)}: expected {KNOWN}")


def only_archive(entries: list[Entry]) -> Entry | None:
    """Return the archive or notebook that stands for the code: one, and no Python file beside."""
    files = [e for e in entries if e.kind == "file" and _worth_reading(e.path.split("/"))]
    archives = [entry for entry in files if entry.path.lower().endswith(_ENDINGS)]
    if len(archives) != 1 or any(entry.path.endswith(".py") for entry in files):
        return None
    return archives[0]


def _worth_reading(parts: list[str]) -> bool:
    return not any(p in TOOL_FOLDERS or (p.startswith(".") and p != ".") for p in parts)


def too_many(where: object, limits: Staging) -> IntakeError:
    """Return what to raise where an archive or folder holds too much."""
    return IntakeError(
        f"{where} holds more than {limits.max_archive_entries} files: hand in the folder "
        "transformer/ only, without environments, data or history"
    )


def _kind_of(mode: int) -> Kind:
    return "link" if stat.S_ISLNK(mode) else "file" if stat.S_ISREG(mode) else "special"


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
                entries.append(Entry(above + each.name, _kind_of(status.st_mode), read))
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


def _describe(path: Path, data: bytes) -> str:
    """Say what a file of an unknown type seems to be."""
    if not data:
        return "empty"
    if data.lstrip()[:20].lower().startswith((b"<!doctype", b"<html")):
        return "a web page (was a log-in page saved instead of the file?)"
    if path.suffix == ".py":
        return "a single Python file"
    return "no archive" if b"\x00" in data else "a text file"


@contextlib.contextmanager
def _opening(path: Path) -> Iterator[None]:
    """Say of whatever a malformed archive provokes that it is damaged."""
    try:
        yield
    except IntakeError:
        raise
    except Exception as error:  # zipfile and tarfile raise all kinds of errors
        words = str(error) or type(error).__name__
        text = f"{path} is damaged or unfinished ({words}): make or download it again"
        raise IntakeError(text) from None


def _zip(path: Path, data: bytes, limits: Staging) -> list[Entry]:
    if data.count(b"PK\x01\x02") > limits.max_archive_entries:
        raise too_many(path, limits)
    with _opening(path):
        archive = zipfile.ZipFile(io.BytesIO(data))
        members = [member for member in archive.infolist() if not member.is_dir()]
    entries = []
    for member in members:
        mode = member.external_attr >> 16
        kind = _kind_of(mode) if stat.S_IFMT(mode) else "file"
        read = functools.partial(_read_zip, path, archive, member)
        entries.append(Entry(member.filename, kind, read))
    return entries


def _read_zip(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, size: int) -> bytes:
    if member.flag_bits & 1:
        raise IntakeError(f"{path} is locked with a password: make it again without one")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise IntakeError(f"{path} uses an unusual compression: make it again as an ordinary .zip")
    with _opening(path), archive.open(member) as file:
        return file.read(size)


def _tar(path: Path, data: bytes, room: int, limits: Staging) -> list[Entry]:
    entries: list[Entry] = []
    with _opening(path):
        if data.startswith(_GZIP):
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(room + 1)
        if len(data) > room:
            raise IntakeError(
                f"{path} unpacks to more than {room >> 20} MiB: "
                "hand in the folder transformer/ only"
            )
        archive = tarfile.open(fileobj=io.BytesIO(data), mode="r:")  # noqa: SIM115 - entries read it later
        # A malformed size can lead tarfile round in circles: the count ends that, too.
        for count, member in enumerate(archive):
            if count > limits.max_archive_entries:
                raise too_many(path, limits)
            if member.isdir():
                continue
            plain = member.isreg() and not member.issparse()
            link = member.issym() or member.islnk()
            read = functools.partial(_read_tar, path, archive, member)
            kind: Kind = "link" if link else "file" if plain else "special"
            entries.append(Entry(member.name, kind, read))
    return entries


def _read_tar(path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo, size: int) -> bytes:
    with _opening(path):
        file = archive.extractfile(member)
        return file.read(size) if file else b""


def _notebook(path: Path, data: bytes) -> list[Entry]:
    """List the files that the `%%writefile` cells of a notebook would write, in cell order."""
    import nbformat

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about ids and minor versions: not a student's worry
            notebook = nbformat.reads(data.decode("utf-8-sig"), as_version=4)
        cells = [str(cell.source) for cell in notebook.cells if cell.cell_type == "code"]
    except Exception as error:  # nbformat has no common base for what it raises
        raise IntakeError(f"{path} is not a notebook: {type(error).__name__}: {error}") from None
    files: dict[str, str] = {}
    for cell in cells:
        first, _, body = cell.lstrip("\n").partition("\n")
        words = first.split()
        if len(words) < 2 or words[0] not in ("%%writefile", "%%file"):
            continue
        name = words[-1].strip("'\"")
        appended = files.get(name, "") if words[1] in ("-a", "--append") else ""
        files[name] = appended + body + "\n"
    if not files:
        raise IntakeError(
            f"{path} has no cell that starts with %%writefile transformer/<name>.py: only such "
            "cells are graded"
        )
    return [Entry(name, "file", functools.partial(_first, text)) for name, text in files.items()]


def _first(text: str, size: int) -> bytes:
    return text.encode()[:size]
