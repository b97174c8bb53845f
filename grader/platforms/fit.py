"""Cutting a result's texts to what a platform takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from grader.platforms.common import ExportError, Result, Row

# Every text, from whole to none, until a result fits.
_SIZES = (20000, 4000, 1000, 300, 80, 0)


def shortened(result: Result, most: int) -> Result:
    """Return `result` with every text cut to `most` characters."""

    def cut(text: str) -> str:
        return text if len(text) <= most else text[: max(0, most - 4)] + " ..." if most else ""

    def rows(old: Iterable[Row]) -> tuple[Row, ...]:
        return tuple(
            replace(
                row,
                text=cut(row.text),
                cases=tuple(replace(case, text=cut(case.text)) for case in row.cases),
            )
            for row in old
        )

    notes = tuple(cut(note) for note in result.notes) if most else ()
    return replace(result, rows=rows(result.rows), stretch=rows(result.stretch), notes=notes)


def fitting(result: Result, write: Callable[[Result], str], most_bytes: int) -> str:
    """Write `result`, its texts cut as far as it takes to stay within `most_bytes`.

    Raises:
        ExportError: even without any text it does not fit.
    """
    for size in _SIZES:
        text = write(shortened(result, size))
        if len(text.encode()) <= most_bytes:
            return text
    raise ExportError(f"the result does not fit into {most_bytes} bytes, even without any text")


def to_json(value: Any) -> str:
    """Return strict JSON of one value and a newline."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
