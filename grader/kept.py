"""What an earlier run has measured, so that `calibrate` need not measure it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grader import corpus

Json = dict[str, Any]


def verified(path: Path | None) -> dict[tuple[str, str], Json]:
    """Return what `verify` kept of the cases whose gates it ran, by kind and name.

    Raises:
        CorpusError: `path` cannot be read, or is not what `verify` writes.
    """
    if path is None:
        return {}
    try:
        results = json.loads(path.read_bytes())["results"]
        return {
            (r["kind"], r["name"]): {
                "score": None,
                "passed": not r["problems"],
                "gates": r["gates"],
            }
            for r in results
            if any(status != "blocked" for status, _ in r["gates"].values())
        }
    except (OSError, KeyError, TypeError, ValueError) as error:
        text = f"{path}: expected the verify.json of this version, got {error!r}"
        raise corpus.CorpusError(text) from None


def kept(path: Path, source: str) -> dict[str, Json]:
    """Read the results that an earlier run with the same code left, by task."""
    found = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for line in lines:
        try:
            result = json.loads(line)
        except ValueError:  # the line at which it was stopped
            continue
        if result.pop("source") == source:
            found[task_key(result)] = result
    return found


def task_key(task: Json) -> str:
    """Return what tells a task from others."""
    return "|".join(str(task[k]) for k in ("kind", "case", "configuration", "seed", "last_gate"))
