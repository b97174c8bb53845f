"""The published schema of `results.json`, for every test that has a result at hand."""

import json
from pathlib import Path
from typing import Any

import jsonschema

PATH = Path(__file__).resolve().parent.parent / "docs" / "results.schema.json"
SCHEMA = json.loads(PATH.read_text(encoding="utf-8"))


def valid(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a result, which must be as docs/results.schema.json says."""
    jsonschema.validate(tree, SCHEMA)
    return tree
