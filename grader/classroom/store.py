"""The output folder: a mark of its version, a lock, results by key, a folder for each student.

    .batch                      what wrote this folder
    store/<2>/<key>.json        one result; it is there as a whole or not at all
    students/<name>/            results.json and report.html, or message.txt
    batch.jsonl                 one row for each submission, as the last run left it
    gradebook.csv, index.html   written last, from these rows
    timings.csv                 seconds of what the last run graded; all else is the same each run

Every file is written beside its place and then renamed, so that whoever is killed leaves files
that are whole. A file that lies in the store is never written again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Container
from pathlib import Path
from typing import Any

from grader.base.files import UNFINISHED, replace_file
from grader.classroom.collect.gather import NO_ROOM
from grader.classroom.keys import FORMAT
from grader.classroom.messages import MESSAGE, NAMES
from grader.classroom.rows import no_verdict

STATE = "batch.jsonl"
# What a row must have to be taken over.
ROW = frozenset({"name", "key", "path", "notes", *no_verdict("", "", 0)})
MARK = f"transformer-lab batch, format {FORMAT}\n"
_TEMPORARY = "grader-batch-"


class BatchError(Exception):
    """The batch cannot run or go on; the message says what was expected and what to do."""


class Output:
    """One output folder, held by one batch at a time; the shards of a class may share it."""

    def __init__(self, folder: Path, shard: str = "") -> None:
        """Take the folder.

        Args:
            folder: new, empty, or written by a batch of this format.
            shard: such as "2-of-5"; "" for a batch of the whole class.

        Raises:
            BatchError: it is in use, holds something else, or cannot be written.
        """
        self.folder = folder
        self.locks: list[Any] = []
        self.others: list[Path] = []
        try:
            check_mark(folder)
            make_folder(folder)
            self._take(".lock", shared=bool(shard))
            if shard:
                self._take(f".lock-{shard}", shared=False)
            if not (folder / ".batch").exists():
                replace_file(folder / ".batch", MARK.encode())
            if not shard:
                self._sweep()
            self.note = folder / f".temporary-{shard or 'whole'}"
            self.temporary = self._fresh_temporary()
        except (OSError, BatchError) as error:
            self.close()
            raise self.unwritable(error) if isinstance(error, OSError) else error from None

    def _take(self, name: str, *, shared: bool) -> None:
        file = open(self.folder / name, "a+", encoding="ascii")  # noqa: SIM115 (held open)
        self.locks.append(file)
        if not lock(file.fileno(), shared=shared):
            file.seek(0)
            holder = file.read().strip()
            by = f" (process {holder})" if holder else ""
            raise BatchError(
                f"another batch{by} is at work in {self.folder}: wait for it, or choose another "
                "--out"
            )
        if not shared:
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()

    def _sweep(self) -> None:
        """Remove files that whoever was killed had not finished."""
        for places in ("", "store/*/", "students/*/", "upload/"):
            for path in self.folder.glob(f"{places}{UNFINISHED}*"):
                path.unlink(missing_ok=True)

    def _fresh_temporary(self) -> Path:
        """Return a new temporary folder, and remove that of a batch that was killed."""
        if self.note.exists():
            left = Path(self.note.read_text(encoding="utf-8").strip())
            if left.name.startswith(_TEMPORARY) and left.parent == Path(tempfile.gettempdir()):
                shutil.rmtree(left, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
        # A worker that runs as another user has to come through.
        fresh.chmod(0o711)
        try:
            replace_file(self.note, f"{fresh}\n".encode())
        except OSError:
            fresh.rmdir()
            raise
        return fresh

    def path(self, key: str) -> Path:
        """Return where the result of `key` is."""
        return self.folder / "store" / key[:2] / f"{key}.json"

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the result of `key`, from here or from a folder that is merged into this one.

        One that a failing disk has spoilt counts as none.
        """
        found = read_object(self.path(key))
        for other in self.others if found is None else ():
            found = read_object(other / self.path(key).relative_to(self.folder))
            if found is not None:
                self.put(key, found)
                break
        return found

    def put(self, key: str, result: dict[str, Any]) -> None:
        """Keep the result of `key`."""
        replace_file(self.path(key), compact(result))

    def old_rows(self) -> dict[str, dict[str, Any]]:
        """Return the rows that the last run left, by name."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return {row["name"]: row for row in read_state(self.folder)[1] if row.keys() >= ROW}
        return {}

    def unwritable(self, error: OSError) -> BatchError:
        """Return what to raise when a file cannot be written."""
        advice = "make room" if error.errno in NO_ROOM else "make that possible"
        return BatchError(
            f"{error.filename or self.folder} cannot be written ({error.strerror or error}): what "
            f"was graded is kept; {advice} and give the same command again"
        )

    def student(self, name: str) -> Path:
        """Return the folder of one submission."""
        return self.folder / "students" / name

    def forget_others(self, names: Container[str]) -> None:
        """Remove the folders of students who are no longer in the class, with what we wrote."""
        students = self.folder / "students"
        if not students.is_dir():
            return
        with os.scandir(students) as entries:
            others = [e.name for e in entries if e.name not in names and e.is_dir()]
        for name in others:
            for file in (*NAMES, MESSAGE):
                (students / name / file).unlink(missing_ok=True)
            if not any((students / name).iterdir()):
                (students / name).rmdir()

    def close(self) -> None:
        """Give the folder free."""
        if hasattr(self, "temporary"):
            shutil.rmtree(self.temporary, ignore_errors=True)
            self.note.unlink(missing_ok=True)
        for file in self.locks:
            file.close()

    def __enter__(self) -> Output:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def make_folder(folder: Path) -> None:
    """Make the output folder where there is none.

    Raises:
        BatchError: there cannot be one.
        OSError: the disk is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise BatchError(
            f"{folder} cannot be made ({error.strerror or error}): choose another --out"
        ) from None


def check_mark(folder: Path) -> None:
    """Refuse a folder that holds something else than a batch of this format.

    Raises:
        BatchError: it does.
    """
    mark = folder / ".batch"
    if mark.exists():
        found = mark.read_text(encoding="utf-8", errors="replace")
        if found != MARK:
            raise BatchError(
                f"{folder} was written by another version: expected {MARK.strip()!r}, found "
                f"{found.strip()[:80]!r}; choose another --out"
            )
    elif folder.is_dir() and any(not p.name.startswith(".lock") for p in folder.iterdir()):
        raise BatchError(
            f"{folder} holds something that no batch wrote: expected a new or empty folder"
        )


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_state(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the inputs and the rows of a batch that ended.

    Raises:
        OSError, ValueError, KeyError or TypeError: there are none that can be read.
    """
    head, *rows = map(json.loads, (folder / STATE).read_bytes().splitlines())
    if not all("status" in row and "name" in row for row in rows):
        raise KeyError("status")
    return head["inputs"], rows


def compact(value: object) -> bytes:
    """Return JSON on one line."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return (text + "\n").encode("utf-8", "replace")


def lock(handle: int, *, shared: bool) -> bool:
    """Lock an open file until it is closed or its process ends; tell whether that worked."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return shared
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
