"""Small submissions: as folders, archives and notebooks."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from grader.base import settings

LAB = settings.load()
TASKS = ["attention.py", "decoder.py", "encoder.py", "masks.py", "residual.py", "training.py"]
STRETCH = {"kv_cache.py", "rotary.py", "convert.py"}
TREE = {f"transformer/{name}": f"# {name}\n" for name in TASKS}
SMALL = replace(
    LAB, staging=replace(LAB.staging, max_files=7, max_file_kib=2, max_total_kib=5)
)  # fmt: skip


def lay(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def zipped(path: Path, files: Mapping[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tarred(path: Path, files: Mapping[str, str | bytes]) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def noted(path: Path, cells: list[str]) -> Path:
    made = [
        {"cell_type": "code", "source": c, "metadata": {}, "outputs": [], "execution_count": None}
        for c in cells
    ]
    book = {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    path.write_text(json.dumps(book))
    return path
