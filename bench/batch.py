"""A class: what the machinery costs beside the grading, and how near two cores come to ideal."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.options import parse
from grader import arguments, settings
from grader.batch import command, keys
from grader.batch.task import Who, texts, unpack, untimed
from grader.bench.rounds import ROOT, tell
from grader.engine import Referee, Request

SOLUTION = ROOT / "solution"
LOOP = "while True:\n    pass\n"
HOSTILE = "import os\nos._exit(0)\n"


class StandIn:
    """An engine that answers at once with the same result: what is left is the machinery."""

    slots = 2

    def __init__(self, tree: dict[str, Any]) -> None:
        """Answer with `tree`."""
        lab = settings.load()
        contained = tree["isolation"]["contained"]
        self.inputs = asdict(keys.inputs(lab, contained))
        self.tree = tree
        # As long as a worker's; that the texts are another student's costs nobody time.
        self.texts = texts(tree, Who("student", "student", ()))

    def submit(self, task: bytes) -> Future[bytes]:
        """Answer a task, which is unpacked as a worker would."""
        staged = unpack(json.loads(task))
        submission = self.tree["submission"] | {"sha256": staged.sha256, "notes": staged.notes}
        answer = {"tree": self.tree | {"submission": submission}, "texts": self.texts}
        done: Future[bytes] = Future()
        done.set_result(json.dumps(answer | {"inputs": self.inputs, "seconds": 0.0}).encode())
        return done

    def close(self) -> None:
        """Have nothing to end."""


def write_class(folder: Path, number: int) -> None:
    """Write so many submissions, all of them different; files that are the same are linked."""
    files = {p.name: p for p in (SOLUTION / "transformer").glob("*.py")}
    for i in range(number):
        home = folder / f"student{i:05}" / "transformer"
        home.mkdir(parents=True)
        for name, path in files.items():
            if name != "masks.py":
                os.link(path, home / name)
        text = files["masks.py"].read_text(encoding="utf-8")
        (home / "masks.py").write_text(f"{text}# {i}\n", encoding="utf-8")


def run(source: Path, out: Path, engine: StandIn) -> float:
    """Grade a class by the stand-in and return the seconds."""
    words = ["batch", str(source), "--out", str(out), "--quiet", "--isolation", "auto"]
    options = arguments.parser().parse_args(words)
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        code = command.main(options, lambda *_: engine)
    if code != command.GRADED:
        raise SystemExit(f"the batch ended with exit code {code}")
    return time.perf_counter() - began


def solved() -> dict[str, Any]:
    """Return the result of the solution."""
    with Referee(settings.load()) as referee:
        return untimed(referee.grade(Request(path=SOLUTION)))  # type: ignore[no-any-return]


def machinery(number: int, rounds: int) -> Iterator[dict[str, float]]:
    """Yield what a class costs whose grading takes no time, once new and once known."""
    engine = StandIn(solved())
    with tempfile.TemporaryDirectory(dir=ROOT / "reports") as base:
        source = Path(base, "class")
        write_class(source, number)
        for _ in range(rounds):
            out = Path(base, "out")
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            new = run(source, out, engine)
            again = run(source, out, engine)
            shutil.rmtree(out)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            yield {
                "submissions": number,
                "each": new / number,
                "again": again,
                "peak": peak * 1024 / 1e6,
                "growth": (peak - before) * 1024 / 1e6,
            }


def mixed(folder: Path, number: int) -> None:
    """Write a class: half correct, a quarter wrong, an eighth endless, an eighth hostile."""
    wrong = (ROOT / "starter/transformer/residual.py").read_text(encoding="utf-8")
    for i in range(number):
        home = folder / f"student{i:02}" / "transformer"
        shutil.copytree(SOLUTION / "transformer", home)
        with open(home / "masks.py", "a", encoding="utf-8") as file:
            file.write(f"# {i}\n")
        if i % 8 in (4, 5):
            (home / "residual.py").write_text(wrong, encoding="utf-8")
        elif i % 8 == 6:
            (home / "attention.py").write_text(LOOP, encoding="utf-8")
        elif i % 8 == 7:
            (home / "attention.py").write_text(HOSTILE, encoding="utf-8")


def whole(source: Path, out: Path, jobs: int) -> tuple[float, float]:
    """Grade a class in fact; return the wall seconds, and those of each one's own together."""
    words = [sys.executable, "-m", "grader", "batch", str(source), "--out", str(out), "--quiet"]
    began = time.perf_counter()
    done = subprocess.run([*words, "--jobs", str(jobs)], cwd=ROOT, capture_output=True, text=True)
    wall = time.perf_counter() - began
    if done.returncode != command.GRADED:
        raise SystemExit(f"exit code {done.returncode}: {done.stderr.strip().split(chr(10))[-1]}")
    lines = (out / "timings.csv").read_text(encoding="utf-8").splitlines()[1:]
    return wall, sum(float(line.rsplit(",", 1)[1]) for line in lines)


def classes(jobs: int, number: int, rounds: int) -> Iterator[dict[str, float]]:
    """Yield how near a mixed class comes to the ideal, and how many correct ones fit a minute."""
    with tempfile.TemporaryDirectory(dir=ROOT / "reports") as base:
        mixed(Path(base, "mixed"), number)
        write_class(Path(base, "correct"), number // 2)
        for i in range(rounds):
            wall, own = whole(Path(base, "mixed"), Path(base, f"mixed-{i}"), jobs)
            right, _ = whole(Path(base, "correct"), Path(base, f"correct-{i}"), jobs)
            yield {
                "wall": wall,
                "share": 100 * own / jobs / wall,
                "a_minute": 60 * (number // 2) / right,
            }


def main() -> None:
    """Measure what the command line names."""
    options: argparse.Namespace = parse(__doc__ or "", "machinery", "class", number=1000, jobs=2)
    (ROOT / "reports").mkdir(exist_ok=True)
    if options.what == "machinery":
        rounds = machinery(options.number, options.rounds)
    else:
        rounds = classes(options.jobs, options.number, options.rounds)
    for taken in rounds:
        tell(taken)


if __name__ == "__main__":
    main()
