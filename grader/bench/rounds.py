"""Rounds of measurements: taken in turn by the programs, read line by line by the harness."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from grader.bench.figure import Experiment, Round

ROOT = Path(__file__).resolve().parent.parent.parent


class MeasurementFailed(Exception):
    """A program that could not measure; the message is the last line it wrote to stderr."""


def interleave(
    subjects: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[dict[str, float]]:
    """Time the subjects in turn, A B A B, and yield the seconds of every round.

    Args:
        subjects: What to call, by name, in order.
        rounds: How often.
        warm_up: Rounds before that, which do not count.
        clock: Seconds from any start.
    """
    for number in range(-warm_up, rounds):
        taken = {}
        for name, call in subjects.items():
            began = clock()
            call()
            taken[name] = clock() - began
        if number >= 0:
            yield taken


def tell(taken: Round) -> None:
    """Print one round for the harness."""
    print(json.dumps(dict(taken)), flush=True)


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a program: so many threads, and where its modules are."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join((str(ROOT), str(ROOT / "solution"), *([before] if before else [])))
    return os.environ | {name: str(threads) for name in names} | {"PYTHONPATH": paths}


def run(experiment: Experiment) -> Iterator[Round]:
    """Run the experiment's program and yield its rounds as they come.

    Closing the iterator ends the program.

    Raises:
        MeasurementFailed: it ended early, or with an error.
    """
    command = [sys.executable, "-m", experiment.module, *experiment.arguments]
    command += ["--rounds", str(experiment.rounds)]
    with tempfile.TemporaryFile("w+") as said:
        # A session of its own: Ctrl-C reaches the harness, which then ends the program.
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(experiment.threads),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )
        count = 0
        try:
            assert process.stdout is not None
            for line in process.stdout:
                count += 1
                yield json.loads(line)
            code = process.wait()
        finally:
            end(process)
        if code or count < experiment.rounds:
            said.seek(0)
            reason = said.read().strip().split("\n")[-1] or f"exit code {code}"
            raise MeasurementFailed(f"{count} of {experiment.rounds} rounds: {reason}")


def end(process: subprocess.Popen[str]) -> None:
    """End a program and what it started; it may clean up after itself."""
    if process.stdout is not None:
        process.stdout.close()
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(timeout=5.0)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def draw(measured: Path, folder: Path) -> str:
    """Draw the curves of a `bench.json` into `folder`; return why not, or nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.plots", str(measured.resolve()), str(folder.resolve())],
        cwd=ROOT,
        env=environment(1),
        capture_output=True,
        text=True,
    )
    return done.stderr.strip().split("\n")[-1] if done.returncode else ""
