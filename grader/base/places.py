"""Where the project's files are; no other module derives these paths from its own."""

from __future__ import annotations

from pathlib import Path

GRADER = Path(__file__).resolve().parent.parent
ROOT = GRADER.parent
LAB_FILE = ROOT / "lab.toml"
CHECKS = GRADER / "checks"
TEMPLATES = GRADER / "report" / "templates"
NOTEBOOKS = ROOT / "notebooks"
# Recorded answers, which replace the oracle in a student's copy.
RECORDED = GRADER / "expected.safetensors"
ZYGOTE = GRADER / "worker" / "zygote.py"


def originals() -> Path:
    """Return a tree with the given files as they were handed out.

    A student's copy keeps one beside the grader, because its starter may have been changed.
    """
    return next(p for p in (ROOT / "solution", GRADER / "original") if p.is_dir())
