"""Notebooks: built from percent-format sources, run against a tree, shown as pages."""

from __future__ import annotations

from pathlib import Path


def built(folder: Path) -> dict[str, bytes]:
    """Return the notebooks of `folder` by file name, without outputs."""
    return {}
