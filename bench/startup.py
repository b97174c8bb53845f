"""Whole processes, cold: a check and a grade beside a process that only imports torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

from bench.options import parse
from grader.bench.rounds import ROOT, interleave, tell

IMPORT = "import torch"
ONE_STEP = """
import torch
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(layer.parameters())
layer(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""
TASK = "2.2"


def process(*words: str) -> Callable[[], object]:
    """Return a call of Python with these words; a process that fails is no measurement."""
    # As anybody's Python does, it keeps what it has compiled, for the next round.
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def call() -> None:
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().split("\n")
            raise SystemExit(f"{' '.join(words[:4])}: exit {done.returncode}: {said[-1]}")

    return call


def main() -> None:
    """Time the two processes of the kind that the command line names."""
    options = parse(__doc__ or "", "check", "grade")
    with tempfile.TemporaryDirectory() as folder:
        subjects = {
            "check": {
                "ours": process("-m", "grader", "check", TASK, "--tree", "solution", "--quiet"),
                "bare": process("-c", IMPORT),
            },
            "grade": {
                "ours": process("-m", "grader", "grade", "solution", "--quiet", "--out", folder),
                "bare": process("-c", ONE_STEP),
            },
        }[options.what]
        for taken in interleave(subjects, options.rounds):
            tell(taken)


if __name__ == "__main__":
    main()
