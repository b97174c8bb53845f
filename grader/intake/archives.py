"""The entries of an archive or a notebook, by what it is rather than by what it is called."""

from __future__ import annotations

import functools
import gzip
import io
import stat
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from grader.base.settings import Staging
from grader.intake.entry import KNOWN, Entry, IntakeError, kind_of, too_many

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


def list_archive(path: Path, read: Callable[[int], bytes], limits: Staging) -> list[Entry]:
    """List the entries of an archive, by what it is rather than by what it is called.

    Args:
        path: what it is called in messages.
        read: returns at most so many bytes of it.
        limits: of what it may hold.

    Raises:
        IntakeError: it is of no known kind, damaged or too large.
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
        raise too_many(path, limits)
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
        kind = kind_of(mode) if stat.S_IFMT(mode) else "file"
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
                raise too_many(path, limits)
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
