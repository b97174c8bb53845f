"""A class to grade, and an engine that grades in no time by what stands in masks.py."""

from __future__ import annotations

import base64
import csv
import json
import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from class_cases import LAB, tree, write
from platform_cases import broken, mixed
from platform_cases import tree as passed

from grader import __main__ as command_line
from grader.classroom import command, keys
from grader.classroom.messages import Who, texts, untimed

Files = dict[str, bytes]


def result(masks: bytes) -> dict[str, Any]:
    """Return the result that belongs to the text of masks.py."""
    if b"wrong" in masks:
        return mixed()
    return broken() if b"broken" in masks else passed()


class Stub:
    """An engine that knows the answers; it remembers what it was asked."""

    def __init__(self, jobs: int = 2, pause_s: float = 0.0, contained: bool = True) -> None:
        self.slots = jobs
        self.pause_s = pause_s
        self.asked: list[str] = []
        self.threads = ThreadPoolExecutor(jobs)
        self.inputs = asdict(keys.inputs(LAB, contained=contained))
        self.most_waiting = 0
        self.waiting = 0

    def submit(self, task: bytes) -> Future[bytes]:
        self.waiting += 1
        self.most_waiting = max(self.waiting, self.most_waiting)
        return self.threads.submit(self._grade, json.loads(task))

    def _grade(self, task: dict[str, Any]) -> bytes:
        masks = base64.b64decode(task["files"]["transformer/masks.py"])
        self.asked.append(masks.decode(errors="replace"))
        if self.pause_s:
            time.sleep(random.random() * self.pause_s)
        self.waiting -= 1
        if b"crash" in masks:
            raise RuntimeError("the grader's process ended with -9, twice")
        tree = untimed(result(masks)) | {"seed": int(task["sha256"][:8], 16)}
        tree["submission"] = tree["submission"] | {"sha256": task["sha256"], "notes": task["notes"]}
        made = {} if tree["grader_error"] else texts(tree, Who(**task["who"]))
        answer = {"tree": tree, "seconds": 1.5, "inputs": self.inputs, "texts": made}
        return json.dumps(answer).encode()

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)


def student(name: str, masks: str = "MASKS = 1\n") -> Files:
    """Return a folder of one student."""
    return tree(f"{name}/") | {f"{name}/transformer/masks.py": masks.encode()}


def small_class(root: Path, **masks: str) -> Path:
    """Write a class: a folder for each name, with the text of its masks.py."""
    for name, text in masks.items():
        write(root, student(name, text))
    return root


def run(source: Path, out: Path, *words: str, engine: Stub | None = None) -> tuple[int, Stub]:
    """Run the command with a stand-in for the processes; return exit code and engine."""
    found = engine or Stub()
    options = command_line.parser().parse_args(
        ["batch", str(source), "--out", str(out), "--quiet", *words]
    )
    return command.main(options, lambda *_: found), found


def book(out: Path) -> list[dict[str, str]]:
    """Return the lines of the gradebook."""
    with open(out / "gradebook.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def contents(out: Path, keep: Callable[[str], bool] = lambda name: True) -> Files:
    """Return every file of an output folder by name."""
    return {
        name: path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and keep(name := path.relative_to(out).as_posix())
    }
