"""`python -m grader export`: a result in other platforms' formats, without grading again."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from grader.report import platforms

_MOST_BYTES = 64 << 20


def main(options: argparse.Namespace) -> int:
    """Export `options.result` and return the exit code."""
    path: Path = options.result
    try:
        if {"text", "json"} & set(options.format):
            raise platforms.ExportError("text and json are what grade prints: name a platform")
        if path.stat().st_size > _MOST_BYTES:
            raise platforms.ExportError(f"it is larger than {_MOST_BYTES >> 20} MiB")
        tree = _read(path)
        if not isinstance(tree, dict):
            raise platforms.ExportError("expected the object of a results.json")
        for written in platforms.export(tree, options.format, options.out or path.parent):
            print(written)
    except (OSError, ValueError) as error:
        print(f"cannot export {path}: {_said(error, path)}", file=sys.stderr)
        return 2
    return 0


def _said(error: Exception, path: Path) -> str:
    """Return what went wrong, and where, unless that is `path`."""
    if not isinstance(error, OSError):
        return str(error)
    other = error.filename and Path(error.filename) != path
    return f"{error.filename}: {error.strerror}" if other else error.strerror or str(error)


def _read(path: Path) -> object:
    """Return what stands in a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise platforms.ExportError(f"it is no JSON that can be read ({error})") from None
