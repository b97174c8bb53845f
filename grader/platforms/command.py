"""`python -m grader export`: a result in other platforms' formats, without grading again."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from grader import platforms

_MOST_BYTES = 64 << 20


def main(options: argparse.Namespace) -> int:
    """Export `options.result` and return the exit code."""
    path: Path = options.result
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise platforms.ExportError(f"it is larger than {_MOST_BYTES >> 20} MiB")
        tree = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(tree, dict):
            raise platforms.ExportError("expected the object of a results.json")
        for written in platforms.export(tree, options.format, options.out or path.parent):
            print(written)
    except (OSError, ValueError, RecursionError) as error:
        print(f"cannot export {path}: {error}", file=sys.stderr)
        return 2
    return 0
