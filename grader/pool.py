"""Processes that each keep one warm referee and judge what comes, a line of JSON for each line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
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
    """`jobs` processes of `python -m <module> ...`, each of which runs `serve`."""

    def __init__(self, jobs: int, module: str, *words: str) -> None:
        """Start the processes."""
        self.command = [sys.executable, "-m", module, *words]
        self.ending = False
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
            # A Ctrl-C in a terminal is for the one who asks, who passes it on once.
            start_new_session=True,
        )

    def judge(self, task: Json) -> Json | None:
        """Return the answer to one task, or None where the process ended before it answered.

        Another process takes its place.
        """
        place = self.free.get()
        process = self.processes[place]
        assert process.stdin and process.stdout
        line = ""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line and not self.ending:
            end(process)
            self.processes[place] = self._start()
        self.free.put(place)
        return json.loads(line) if line else None

    def map(self, tasks: Iterable[Json]) -> Iterator[tuple[Json, Json | None]]:
        """Yield every task with its answer (see `judge`), as the answers come."""
        with ThreadPoolExecutor(len(self.processes)) as threads:
            asked = {threads.submit(self.judge, task): task for task in tasks}
            try:
                for future in as_completed(asked):
                    yield asked[future], future.result()
            except BaseException:
                # Whoever stops here wants no further answer, and no judging process either.
                self.ending = True
                threads.shutdown(wait=False, cancel_futures=True)
                for process in self.processes:
                    process.terminate()
                raise

    def close(self) -> None:
        """End the processes and the workers below them."""
        for process in self.processes:
            end(process)

    def __enter__(self) -> Pool:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def end(process: subprocess.Popen[str]) -> None:
    """Wait for the end of a process that has been told that nothing more will be asked."""
    with contextlib.suppress(BrokenPipeError):
        process.communicate()


def answered(answers: Iterable[tuple[Json, Json | None]]) -> Iterator[Json]:
    """Yield the answers alone.

    Raises:
        RuntimeError: one is missing.
    """
    for task, answer in answers:
        if answer is None:
            raise RuntimeError(f"the judging process ended at {json.dumps(task)[:200]}")
        yield answer


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
    # This signal says that the one who asks has stopped. A shell's background jobs ignore SIGINT.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        for line in sys.stdin:
            print(json.dumps(judge(json.loads(line))), file=answers, flush=True)
