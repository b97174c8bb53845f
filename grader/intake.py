"""TEMPORARY stand-in by the lead until the real intake.py lands: overwrite freely."""
from __future__ import annotations
import hashlib, shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
class IntakeError(Exception): ...
@dataclass
class Staged:
    name: str
    root: Path
    files: dict[str, int]
    sha256: str
    notes: list[str] = field(default_factory=list)
def stage(path: Path, home: Path, settings: Any) -> Staged:
    if not (path / "transformer").is_dir(): raise IntakeError(f"no transformer package in {path}")
    shutil.copytree(path / "transformer", home / "transformer", ignore=shutil.ignore_patterns("__pycache__"))
    files = {str(p.relative_to(home)): p.stat().st_size for p in home.rglob("*.py")}
    h = hashlib.sha256()
    for f in sorted(files): h.update(f.encode() + b"\0" + (home / f).read_bytes())
    return Staged(path.resolve().name, home, files, h.hexdigest())
