"""CSV files: read with the position of each cell, so that one cell can be changed; and written."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from grader.base.text import plain

MOST_BYTES = 64 << 20
_MOST_CHARACTERS = 500
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_LINE_END = re.compile(r"\r\n|\n|\r")
# Some programs write such a first line, and spreadsheets understand it.
_SEPARATOR = re.compile(r"\"?sep=([,;\t])\"?(?=[\r\n])")


class CsvError(ValueError):
    """A table that cannot be read; the message says what was expected and what was found."""


@dataclass(frozen=True)
class Cell:
    """A cell's value, and the span of its raw text including quotes."""

    value: str
    start: int
    end: int
    quoted: bool


@dataclass(frozen=True)
class Table:
    """A file's text, its encoding, its delimiter and its rows without the blank ones."""

    text: str
    encoding: str
    mark: bytes
    delimiter: str
    rows: list[list[Cell]]

    def values(self, row: int) -> list[str]:
        """Return a row's values without surrounding spaces."""
        return [cell.value.strip() for cell in self.rows[row]]

    def changed(self, values: Mapping[Cell, str]) -> bytes:
        """Return the file with new values in some cells; every other byte is unchanged."""
        pieces: list[str] = []
        done = 0
        for cell in sorted(values, key=lambda cell: cell.start):
            pieces += [self.text[done : cell.start], self._raw(values[cell], cell.quoted)]
            done = cell.end
        text = "".join([*pieces, self.text[done:]])
        return self.mark + text.encode(self.encoding, "surrogateescape")

    def _raw(self, value: str, quoted: bool) -> str:
        if quoted or any(c in value for c in (self.delimiter, '"', "\n", "\r")):
            return '"' + value.replace('"', '""') + '"'
        return value


def read_table(data: bytes, name: str = "the table") -> Table:
    """Read a comma-, semicolon- or tab-separated file.

    Args:
        data: UTF-8 or UTF-16 with or without a byte-order mark, or Windows-1252.
        name: how messages refer to it.

    Raises:
        CsvError: it is empty, too large, or not text.
    """
    if len(data) > MOST_BYTES:
        raise CsvError(f"{name} is larger than {MOST_BYTES >> 20} MiB: is it the right file?")
    if data.startswith(b"PK"):
        raise CsvError(f"{name} is a spreadsheet or a zip, not CSV: save it as CSV (UTF-8)")
    mark = next((m for m in _MARKS if data.startswith(m)), b"")
    encoding = _MARKS.get(mark, "utf-8")
    try:
        text = data[len(mark) :].decode(encoding)
    except UnicodeDecodeError:
        if mark:
            raise CsvError(f"{name} is not {encoding} text, although it begins like that") from None
        # Bytes without a meaning are kept and written back unchanged.
        encoding = "cp1252"
        text = data.decode(encoding, "surrogateescape")
    if "\x00" in text:
        raise CsvError(f"{name} is not text: expected a CSV file")
    named = _SEPARATOR.match(text)
    delimiter = named[1] if named else _delimiter(text)
    rows = _rows(text, delimiter, named.end() if named else 0)
    rows = [row for row in rows if any(cell.value.strip() for cell in row)]
    if not rows:
        raise CsvError(f"{name} is empty: expected a CSV file with a row of headings")
    return Table(text, encoding, mark, delimiter, rows)


def _delimiter(text: str) -> str:
    """Return the delimiter that gives the most headings."""
    counts = {d: max(map(len, _rows(text, d, most=1)), default=0) for d in ",;\t"}
    return max(counts, key=lambda d: counts[d])


def _rows(text: str, delimiter: str, at: int = 0, most: int | None = None) -> list[list[Cell]]:
    cell = re.compile(rf'"(?:[^"]|"")*"(?=[{delimiter}\r\n]|\Z)|[^{delimiter}\r\n]*')
    rows: list[list[Cell]] = []
    row: list[Cell] = []
    while at < len(text) and (most is None or len(rows) < most):
        found = cell.match(text, at)
        assert found is not None  # the second branch matches anything
        raw = found[0]
        quoted = len(raw) > 1 and raw[0] == raw[-1] == '"'
        value = raw[1:-1].replace('""', '"') if quoted else raw
        row.append(Cell(value, found.start(), found.end(), quoted))
        at = found.end()
        end = _LINE_END.match(text, at)
        if end:
            at = end.end()
            rows.append(row)
            row = []
        elif at < len(text):
            at += 1
            if at == len(text):
                row.append(Cell("", at, at, False))
    return [*rows, row] if row else rows


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV; None becomes an empty cell."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def cell(text: str) -> str:
    """Return a text on one line, shortened, and quoted where a spreadsheet would run it."""
    text = " ".join(plain(text).split())
    shown = f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
    return shown if len(shown) <= _MOST_CHARACTERS else shown[: _MOST_CHARACTERS - 4] + " ..."
