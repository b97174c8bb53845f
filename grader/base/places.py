"""Where the project's files lie; nobody else looks for them from where it stands itself."""

from __future__ import annotations

from pathlib import Path

GRADER = Path(__file__).resolve().parent.parent
ROOT = GRADER.parent
LAB_FILE = ROOT / "lab.toml"
CHECKS = GRADER / "checks"
TEMPLATES = GRADER / "report" / "templates"
NOTEBOOKS = ROOT / "notebooks"
# The answers that take the oracle's place in a student's copy.
RECORDED = GRADER / "expected.safetensors"
ZYGOTE = GRADER / "worker" / "zygote.py"


def originals() -> Path:
    """Return a tree with the given files as they were handed out.

    A student's copy keeps one beside the grader: in its starter they may have been changed.
    """
    return next(p for p in (ROOT / "solution", GRADER / "original") if p.is_dir())
