"""The grader as its users run it: single grades, classes, watch, endless loops, memory, tests."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil

from bench import ROOT
from bench.timing import MeasurementFailed, interleave, process, seconds
from grader.base import settings
from grader.run.engine import Referee, Request
from transformer.config import LAB, LAB_RECIPE
from transformer.data import sequence_batches
from transformer.models import Seq2SeqTransformer
from transformer.training import train

PYTHON = sys.executable
SOLUTION = ROOT / "solution"
COLD_ROUNDS, WARM_ROUNDS, SAVES, MEMORY_ROUNDS = 5, 5, 12, 3
JOBS = 2
PACE_ROUNDS, CORRECT, MIXED = 3, 20, 40
SAMPLE_S = 0.05
PAUSE_S = 0.3  # a person looks up between two saves

ONE_STEP = """
import torch
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(layer.parameters())
layer(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""
# A file, a line of it, and the loop without end that is put before that line.
ENDLESS = (
    ("training.py", "    for batch in batches:\n", "    while True:\n        pass\n"),
    # Gate 3 alone takes gradients through two blocks.
    ("encoder.py", "        for block in self.blocks:\n",
     "        while x.requires_grad and len(self.blocks) == 2:\n            pass\n"),
)  # fmt: skip


def lines() -> Iterator[dict[str, float]]:
    """Yield the lines of Python in grader/."""
    files = (ROOT / "grader").rglob("*.py")
    yield {"lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)}


def cold_grade() -> Iterator[dict[str, float]]:
    """Yield a whole grade of the solution / a bare process with one AdamW step."""
    with tempfile.TemporaryDirectory() as out:
        ours = process(PYTHON, "-m", "grader", "grade", SOLUTION, "--quiet", "--out", out)
        bare = process(PYTHON, "-c", ONE_STEP)
        for taken in interleave({"ours": ours, "bare": bare}, COLD_ROUNDS):
            yield {"cold_grade": taken["ours"] / taken["bare"]}


def copy_of_solution(folder: Path, number: int) -> Path:
    """Write a solution that differs from all others by a comment, and return its package."""
    package = folder / f"student{number:02}" / "transformer"
    shutil.copytree(SOLUTION / "transformer", package)
    with open(package / "masks.py", "a", encoding="utf-8") as file:
        file.write(f"# {number}\n")
    return package


def grade_class(source: Path) -> tuple[float, float]:
    """Grade a class; return the wall seconds, and those of each submission added up."""
    with tempfile.TemporaryDirectory() as out:
        batch = process(
            PYTHON, "-m", "grader", "batch", source, "--out", out, "--quiet", "--jobs", str(JOBS)
        )
        wall = seconds(batch)
        rows = Path(out, "timings.csv").read_text(encoding="utf-8").splitlines()[1:]
    return wall, sum(float(row.rpartition(",")[2]) for row in rows)


def class_pace() -> Iterator[dict[str, float]]:
    """Yield the seconds of a correct submission on its process / those of 300 bare steps."""
    batches = list(sequence_batches("reverse", steps=300, batch_size=128, seed=0))

    def bare() -> None:
        train(Seq2SeqTransformer(LAB), iter(batches), LAB_RECIPE)

    with tempfile.TemporaryDirectory() as source:
        for number in range(CORRECT):
            copy_of_solution(Path(source), number)
        subjects: dict[str, Callable[[], object]] = {"bare": bare}
        subjects["class"] = partial(grade_class, Path(source))
        for taken in interleave(subjects, PACE_ROUNDS, warm_up=0):
            yield {"class_pace": taken["class"] * JOBS / CORRECT / taken["bare"]}


def class_share() -> Iterator[dict[str, float]]:
    """Yield the share of two processes that a class spends on submissions.

    Half of it is correct, a quarter wrong, an eighth never ends, an eighth ends the worker.
    """
    wrong = ROOT / "starter/transformer/residual.py"
    odd = {6: "while True:\n    pass\n", 7: "import os\nos._exit(0)\n"}
    with tempfile.TemporaryDirectory() as source:
        for number in range(MIXED):
            package = copy_of_solution(Path(source), number)
            if number % 8 in (4, 5):
                shutil.copy(wrong, package)
            elif number % 8 in odd:
                (package / "attention.py").write_text(odd[number % 8], encoding="utf-8")
        wall, own = grade_class(Path(source))
    yield {"class_share": 100 * own / JOBS / wall}


def watch() -> Iterator[dict[str, float]]:
    """Yield the seconds from saving a file of the solution to the verdict of its task."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "tree/transformer")
        shutil.copytree(SOLUTION / "transformer", package)
        command = [PYTHON, "-u", "-m", "grader", "watch", "--tree", str(package.parent)]
        watching = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

        def wait_for(start: str) -> float:
            assert watching.stdout
            for line in watching.stdout:
                if line.startswith(start):
                    return time.perf_counter()
            raise MeasurementFailed("watch ended by itself")

        try:
            wait_for("everything:")
            names = ("masks", "attention", "residual", "encoder", "decoder", "training")
            for name in itertools.islice(itertools.cycle(names), SAVES):
                time.sleep(PAUSE_S)
                path = package / f"{name}.py"
                text = path.read_text(encoding="utf-8") + "# saved\n"
                began = time.perf_counter()
                path.write_text(text, encoding="utf-8")
                yield {"watch": wait_for("task ") - began}
                wait_for("everything:")
        finally:
            watching.terminate()
            watching.communicate(timeout=30)


def warm() -> Iterator[dict[str, float]]:
    """Yield the seconds of gates 1 to 3 in turn, and the milliseconds of the slowest part."""
    with Referee(settings.load()) as referee, tempfile.TemporaryDirectory() as out:

        def grade(tasks: frozenset[str], gates: int) -> float:
            tree = referee.grade(Request(SOLUTION, Path(out), tasks=tasks, gates=gates))
            asked = [part for part in tree["parts"] if part["task"] in tasks]
            asked += tree["gates"][:gates]
            bad = [entry["name"] for entry in asked if entry["status"] != "passed"]
            if bad:
                raise MeasurementFailed(f"the solution does not pass {bad[0]}")
            return float(sum(gate["seconds"] for gate in tree["gates"][:gates]))

        tasks = [frozenset(task) for task in "123456"]
        grade(tasks[0], 0)
        for _ in range(WARM_ROUNDS):
            slowest = max(seconds(partial(grade, task, 0)) for task in tasks)
            yield {"slowest_part": 1000 * slowest, "gates_1_to_3": grade(frozenset(), 3)}


def endless_loop() -> Iterator[dict[str, float]]:
    """Yield the seconds of a grade that meets a loop without end, the longer one of two."""
    taken = []
    for file, before, loop in ENDLESS:
        with tempfile.TemporaryDirectory() as folder:
            path = copy_of_solution(Path(folder), 0) / file
            text = path.read_text(encoding="utf-8")
            if before not in text:
                raise MeasurementFailed(f"{file} has no line {before.strip()!r} any more")
            path.write_text(text.replace(before, loop + before), encoding="utf-8")
            words = ("-m", "grader", "grade", path.parent.parent, "--quiet", "--out", folder)
            taken.append(seconds(process(PYTHON, *words, expected=1)))
            tree = json.loads(Path(folder, "results.json").read_bytes())
            if "timeout" not in [entry["status"] for entry in tree["parts"] + tree["gates"]]:
                raise MeasurementFailed(f"nothing timed out with a loop in {file}")
    yield {"endless_loop": max(taken)}


def worker_memory() -> Iterator[dict[str, float]]:
    """Yield the megabytes that the largest worker of a grade shares with no other process."""
    words = [PYTHON, "-m", "grader", "grade", str(SOLUTION), "--quiet", "--out"]
    for _ in range(MEMORY_ROUNDS):
        largest = 0
        with tempfile.TemporaryDirectory() as out:
            grade = psutil.Popen([*words, out], cwd=ROOT, stdout=subprocess.DEVNULL)
            while grade.poll() is None:
                for worker in grade.children(recursive=True):
                    with contextlib.suppress(psutil.Error):  # it has ended
                        # Workers are below the zygote and have no process below themselves.
                        if worker.ppid() != grade.pid and not worker.children():
                            largest = max(largest, worker.memory_full_info().uss)
                time.sleep(SAMPLE_S)
        if grade.returncode:
            raise MeasurementFailed(f"a grade ended with exit code {grade.returncode}")
        yield {"worker_memory": largest / 1e6}


def make_test() -> Iterator[dict[str, float]]:
    """Yield the seconds of `make test`, once set up."""
    yield {"make_test": seconds(process("make", "test"))}
