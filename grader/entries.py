"""What a submission consists of, as one list of entries: from a folder, an archive or a notebook.

Nothing is unpacked, run or followed here. An entry's content is read later, up to a limit.
"""

from __future__ import annotations

import functools
import gzip
import io
import os
import stat
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grader.settings import Staging

# An archive may carry this many times what is staged of it: pictures, notebooks, a history.
_ROOM = 16
_MAX_DEPTH = 8
# Folders of tools, never of a submission; with these in it a folder could take minutes to list.
TOOL_FOLDERS = frozenset({"__MACOSX", "__pycache__", "node_modules", "site-packages", "venv"})

KNOWN = "a folder, .zip, .tar.gz, .tgz, .tar or .ipynb"


class IntakeError(Exception):
    """There is nothing that can be graded; the message says what was expected and what came."""


@dataclass(frozen=True)
class Entry:
    """One file, link or special file; `read(n)` returns at most n bytes of a file."""

    path: str
    kind: Literal["file", "link", "special"]
    read: Callable[[int], bytes]


def list_entries(path: Path, limits: Staging) -> list[Entry]:
    """List what lies in `path`, sorted by path.

    Raises:
        IntakeError: the path does not exist, cannot be read, or is of no known kind.
    """
    try:
        if path.is_dir():
            entries = _folder(path, limits)
        elif path.exists():
            entries = _archive(path, limits)
        else:
            raise IntakeError(f"{path} does not exist: expected {KNOWN}")
    except OSError as error:
        raise _unreadable(path, error) from None
    return sorted(entries, key=lambda entry: entry.path)


def _unreadable(path: Path | str, error: OSError) -> IntakeError:
    name = error.filename or path
    if isinstance(error, PermissionError):
        return IntakeError(f"no permission to read {name}: change its mode, or copy it")
    return IntakeError(f"{name} cannot be read: {error.strerror or error}")


def _too_many(where: object, limits: Staging) -> IntakeError:
    return IntakeError(
        f"{where} holds more than {limits.max_archive_entries} files: hand in the folder "
        "transformer/ only, without environments, data or history"
    )


def _folder(root: Path, limits: Staging) -> list[Entry]:
    entries: list[Entry] = []

    def refuse(error: OSError) -> None:
        raise error

    # Strings, since a class has many files: a Path for each would take most of the time.
    for folder, names, files in os.walk(root, onerror=refuse):
        above = os.path.relpath(folder, root).split(os.sep) if folder != str(root) else []
        links = [name for name in names if os.path.islink(os.path.join(folder, name))]
        names[:] = sorted(n for n in names if n not in links and _worth_entering(n, len(above)))
        for name in [*files, *links]:
            path = os.path.join(folder, name)
            read = functools.partial(_read_file, path)
            kind = _kind(os.lstat(path).st_mode)
            entries.append(Entry("/".join((*above, name)), kind, read))
        if len(entries) > limits.max_archive_entries:
            raise _too_many(root, limits)
    return entries


def _worth_entering(name: str, depth: int) -> bool:
    return not name.startswith(".") and name not in TOOL_FOLDERS and depth < _MAX_DEPTH


def _kind(mode: int) -> Literal["file", "link", "special"]:
    return "link" if stat.S_ISLNK(mode) else "file" if stat.S_ISREG(mode) else "special"


def _read_file(path: Path | str, size: int) -> bytes:
    # Neither a link nor a pipe that took the file's place since may be followed or waited for.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    flags |= getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            return file.read(size)
    except OSError as error:
        raise _unreadable(path, error) from None


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


def _archive(path: Path, limits: Staging) -> list[Entry]:
    """List the entries of a file, by what it is rather than by what it is called."""
    if not path.is_file():
        raise IntakeError(f"{path} is neither a file nor a folder: expected {KNOWN}")
    room = _ROOM * limits.max_total_kib * 1024
    data = _read_file(path, room + 1)
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


def _describe(path: Path, data: bytes) -> str:
    """Say what a file of no known kind seems to be."""
    if not data:
        return "empty"
    if data.lstrip()[:20].lower().startswith((b"<!doctype", b"<html")):
        return "a web page (was a log-in page saved instead of the file?)"
    if path.suffix == ".py":
        return "a single Python file"
    return "no archive" if b"\x00" in data else "a text file"


def _zip(path: Path, data: bytes, limits: Staging) -> list[Entry]:
    if data.count(b"PK\x01\x02") > limits.max_archive_entries:
        raise _too_many(path, limits)
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        members = archive.infolist()
    except Exception as error:  # zipfile raises whatever a malformed field provokes
        raise _damaged(path, error) from None
    entries = []
    for member in members:
        if member.is_dir():
            continue
        mode = member.external_attr >> 16
        kind = _kind(mode) if stat.S_IFMT(mode) else "file"
        entries.append(
            Entry(member.filename, kind, functools.partial(_read_zip, path, archive, member))
        )
    return entries


def _read_zip(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, size: int) -> bytes:
    if member.flag_bits & 1:
        raise IntakeError(f"{path} is locked with a password: make it again without one")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise IntakeError(f"{path} uses an unusual compression: make it again as an ordinary .zip")
    try:
        with archive.open(member) as file:
            return file.read(size)
    except Exception as error:  # as above
        raise _damaged(path, error) from None


def _tar(path: Path, data: bytes, room: int, limits: Staging) -> list[Entry]:
    plain = _decompress(path, data, room)
    entries: list[Entry] = []
    try:
        archive = tarfile.open(fileobj=io.BytesIO(plain), mode="r:")
        # A malformed size can lead tarfile round in circles: the count ends that, too.
        for count, member in enumerate(archive):
            if count > limits.max_archive_entries:
                raise _too_many(path, limits)
            if member.isdir():
                continue
            kind: Literal["file", "link", "special"] = "special"
            if member.issym() or member.islnk():
                kind = "link"
            elif member.isreg() and not member.issparse():
                kind = "file"
            read = functools.partial(_read_tar, path, archive, member)
            entries.append(Entry(member.name, kind, read))
    except IntakeError:
        raise
    except Exception as error:  # tarfile raises whatever a malformed field provokes
        raise _damaged(path, error) from None
    return entries


def _decompress(path: Path, data: bytes, room: int) -> bytes:
    if not data.startswith(_GZIP):
        return data
    try:
        plain = gzip.GzipFile(fileobj=io.BytesIO(data)).read(room + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from None
    if len(plain) > room:
        raise IntakeError(
            f"{path} unpacks to more than {room >> 20} MiB: hand in the folder transformer/ only"
        )
    return plain


def _read_tar(path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo, size: int) -> bytes:
    try:
        file = archive.extractfile(member)
        return file.read(size) if file else b""
    except Exception as error:  # as above
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> IntakeError:
    words = str(error) or type(error).__name__
    return IntakeError(f"{path} is damaged or unfinished ({words}): make or download it again")


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
