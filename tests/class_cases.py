"""Classes as platforms hand them out, made of tiny submissions."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from grader.base import settings
from grader.base.settings import Settings

LAB: Settings = settings.load()
FILES = {"masks.py": b"MASKS = 1\n", "attention.py": b"HEADS = 7\n"}


def packed(files: dict[str, bytes]) -> bytes:
    """Return a zip of files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def tree(prefix: str = "") -> dict[str, bytes]:
    """Return a submission's files below `prefix`."""
    return {f"{prefix}transformer/{name}": content for name, content in FILES.items()}


def write(root: Path, files: dict[str, bytes]) -> Path:
    """Write files below a folder."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def as_zip(path: Path, files: dict[str, bytes]) -> Path:
    """Write a zip of files."""
    path.write_bytes(packed(files))
    return path
