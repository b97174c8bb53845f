"""Processes that each keep one warm referee and judge what comes, a line of JSON for each line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rich.console import Console
from rich.progress import track

from grader.sandbox import protect_memory

ROOT = Path(__file__).resolve().parent.parent
SECONDS_BETWEEN_LINES = 30.0
Json = dict[str, Any]


class Pool:
    """`jobs` processes of `python -m <module>`, each of which runs `serve`."""

    def __init__(self, module: str, jobs: int) -> None:
        """Start the processes."""
        self.command = [sys.executable, "-m", module]
        self.processes = [self._start() for _ in range(jobs)]
        self.free: SimpleQueue[int] = SimpleQueue()
        for place in range(jobs):
            self.free.put(place)

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def judge(self, task: Json) -> Json:
        """Return the answer to one task.

        Raises:
            RuntimeError: the process ended before it answered; another one takes its place.
        """
        place = self.free.get()
        process = self.processes[place]
        assert process.stdin and process.stdout
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise BrokenPipeError
            answer: Json = json.loads(line)
            return answer
        except BrokenPipeError:
            self.processes[place] = self._start()
            raise RuntimeError(f"the judging process ended at {json.dumps(task)[:200]}") from None
        finally:
            self.free.put(place)

    def map(self, tasks: Iterable[Json]) -> Iterator[Json]:
        """Yield the answers in the order of the tasks."""
        with ThreadPoolExecutor(len(self.processes)) as pool:
            yield from pool.map(self.judge, tasks)

    def close(self) -> None:
        """End the processes and the workers below them."""
        for process in self.processes:
            process.communicate()

    def __enter__(self) -> Pool:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def shown(answers: Iterable[Json], label: str, total: int, console: Console) -> Iterator[Json]:
    """Yield the answers under a bar; where there is no terminal, with a line every half minute."""
    if console.is_terminal:
        yield from track(answers, label, total=total, console=console, transient=True)
        return
    began = said = time.monotonic()
    for done, answer in enumerate(answers, 1):
        yield answer
        now = time.monotonic()
        if now - said > SECONDS_BETWEEN_LINES:
            said = now
            left = (now - began) / done * (total - done) / 60
            console.print(f"{label}: {done} of {total}, {left:.0f} min left")


def serve(judge: Callable[[Json], Json]) -> None:
    """Answer every line of standard input; what else is printed goes to standard error."""
    protect_memory()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(judge(json.loads(line))), file=answers, flush=True)
