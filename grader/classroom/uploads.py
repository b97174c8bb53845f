"""What goes back to the platform: the instructor's own gradebook, filled, and the feedback."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from grader.base.files import replace_file, replacing
from grader.classroom.gradebooks import Grade, fill
from grader.classroom.messages import MESSAGE
from grader.classroom.rows import Row
from grader.classroom.store import Output


def grades(rows: Iterable[Row]) -> list[Grade]:
    """Return a grade for each student who handed in."""
    return [
        Grade(
            student["platform_id"],
            (*student["ids"], *filter(None, [student["email"]])),
            student["name"],
            row["score"],
            row["max_score"],
        )
        for row in rows
        if row["status"] != "missing" or row["score"] is not None
        for student in row["students"]
    ]


def write(output: Output, rows: list[Row], source: Path | None, column: str | None) -> list[str]:
    """Write `upload/` and return what is to be said about it.

    Raises:
        GradebookError: as `fill`.
        CsvError: as `fill`.
    """
    folder = output.folder / "upload"
    said = []
    if source is not None:
        filled = fill(source.read_bytes(), grades(rows), column)
        replace_file(folder / source.name, filled.data)
        said.append(f"{folder / source.name}: {filled.filled} grades filled in")
        said += filled.notes
        said += [f"{who} has no row of their own in it" for who in filled.unmatched]
    if any(row["upload"] for row in rows):
        packed = folder / "feedback.zip"
        files = list(_feedback(output, rows))
        if not is_feedback_zip(files, packed):
            with replacing(packed) as file:
                feedback_zip(files, file)
        said.append(f"{packed}: the reports, named for upload")
    return said


def _feedback(output: Output, rows: Iterable[Row]) -> Iterator[tuple[str, str, Path]]:
    for row in rows:
        name = MESSAGE if row["status"] == "ungradable" else "report.html"
        file = output.student(row["name"]) / name
        if row["upload"] and file.is_file():
            yield row["upload"], name, file


def feedback_zip(items: Iterable[tuple[str, str, Path]], out: BinaryIO) -> None:
    """Pack feedback for upload, the same bytes for the same items.

    Args:
        items: for each file the submission's `upload` prefix (see `collect`), a file name and
            where its content lies. Canvas takes names with its ids in them, Moodle folders as it
            sent them; both prefixes come out of their own download.
        out: where the zip is written.
    """
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for prefix, name, path in sorted(items):
            member = zipfile.ZipInfo(prefix + name, (1980, 1, 1, 0, 0, 0))
            member.external_attr = 0o100644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, path.read_bytes())


def is_feedback_zip(items: Iterable[tuple[str, str, Path]], made: Path) -> bool:
    """Tell whether `made` is what `feedback_zip` makes of the items, which takes longer."""
    try:
        with zipfile.ZipFile(made) as archive:
            held = {m.filename: (m.file_size, m.CRC) for m in archive.infolist()}
    except (OSError, ValueError, zipfile.BadZipFile):
        return False
    for prefix, name, path in items:
        content = path.read_bytes()
        if held.pop(prefix + name, None) != (len(content), zlib.crc32(content)):
            return False
    return not held
