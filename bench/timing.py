"""Interleaved timing, and processes that must succeed to count as measured."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bench import ROOT


class MeasurementFailed(Exception):
    """Something that was to be measured did not do its work; the message says what and why."""


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def interleave(
    subjects: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1
) -> Iterator[dict[str, float]]:
    """Time the subjects in turn, A B A B, and yield the seconds of every round.

    What slows the machine for a while then slows all of them.
    """
    for number in range(-warm_up, rounds):
        taken = {name: seconds(call) for name, call in subjects.items()}
        if number >= 0:
            yield taken


def process(*words: str | Path, expected: int = 0) -> Callable[[], None]:
    """Return a call of a command that must end with the exit code `expected`."""
    # Without what an outer make hands down; and compiled files are kept, as anybody's are.
    hidden = ("MAKE", "MFLAGS", "PYTHONDONTWRITEBYTECODE")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}

    def call() -> None:
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode != expected:
            last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
            command = " ".join(map(str, words[:5]))
            raise MeasurementFailed(f"{command}: exit code {done.returncode}: {last}")

    return call
