"""Processes that each keep one warm referee and answer what comes, a line of JSON for each line.

`Pool` is the side that asks, `serve` the side that answers. A process that dies, hangs or has done
much is replaced; it never takes the one who asks with it. `grader.classroom`, `verify`, `calibrate`
and `mutants` all grade by it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from typing import Any

from grader.base.places import ROOT
from grader.sandbox import protect_memory
from grader.sandbox.processes import kill_tree

Json = dict[str, Any]
# A referee that has graded so many makes room for a fresh one.
_TASKS_EACH = 200
# Whoever is told to end clears up first, within this time.
_PATIENCE_S = 10.0
_LOOK_S = 1.0
# For a referee beside others: what it counts on several threads takes them from the others.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class NoAnswer(RuntimeError):
    """A process gave none; the message says why."""


class Child:
    """One process, started when it is first asked and replaced when it has ended."""

    def __init__(
        self,
        command: Sequence[str],
        budget_s: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            command: of a process that runs `serve`.
            budget_s: the seconds that one answer may take; None = any number.
            environment: what is added to that of this process.
        """
        self.command = command
        self.budget_s = budget_s
        self.environment = {**os.environ, **(environment or {})}
        self.count = 0
        self.late = self.ended = self.busy = False
        # Whoever starts a process and whoever ends it for good take turns.
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, task: bytes, *, again: bool = False) -> bytes:
        """Return the answer to one line.

        Args:
            task: the line, without its end.
            again: whether a process that dies of it is replaced by one that is asked once more.

        Raises:
            NoAnswer: it ended without one, took too long, or has been told to end for good.
        """
        if again:
            try:
                return self._once(task)
            except NoAnswer:
                if self.ended or self.late:
                    raise
        return self._once(task, ", twice" if again else "")

    def _once(self, task: bytes, times: str = "") -> bytes:
        process = self._ready()
        assert process.stdin and process.stdout
        clock = threading.Timer(self.budget_s or 0, self._too_late, (process,))
        clock.daemon = True
        answer = b""
        if self.budget_s:
            clock.start()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(task + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        whole = answer.endswith(b"\n")  # else it was killed while it wrote
        code = None if whole else process.wait()
        clock.cancel()
        self.busy = False
        if whole:
            return answer
        if self.ended:
            raise NoAnswer("the grading was stopped")
        if self.late:
            raise NoAnswer(f"there was no result after {self.budget_s:.0f} seconds")
        raise NoAnswer(f"the grader's process ended with {code}{times}")

    def _ready(self) -> subprocess.Popen[bytes]:
        """Return a process that is about to be asked."""
        with self.lock:
            if self.ended:
                raise NoAnswer("the grading was stopped")
            old = self.process
            if old is None or old.poll() is not None or self.count >= _TASKS_EACH:
                if old is not None:
                    _bury(old)
                self.process = self._start()
                self.count = 0
            self.count += 1
            self.late, self.busy = False, True
            assert self.process
            return self.process

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command,
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A Ctrl-C in a terminal is for the one who asks, who passes it on once.
            start_new_session=True,
        )

    def _too_late(self, process: subprocess.Popen[bytes]) -> None:
        self.late = True
        kill_tree(process.pid)

    def end(self) -> None:
        """Tell the process to end for good, in the middle of a task too."""
        with self.lock:
            self.ended = True
            if self.process is not None and self.busy:
                self.process.terminate()
            elif self.process is not None and self.process.stdin:
                with contextlib.suppress(BrokenPipeError):
                    self.process.stdin.close()

    def join(self) -> None:
        """Wait until the process that was told to end has ended, with all that is below it."""
        if self.process is not None:
            _bury(self.process)


def _bury(process: subprocess.Popen[bytes]) -> None:
    """Let a process end that will be asked nothing more; if it does not, end it."""
    assert process.stdin and process.stdout
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid)
        process.wait()
    process.stdout.close()


class Pool:
    """`jobs` processes of `python -m <module> ...`, each asked one task at a time."""

    def __init__(
        self,
        jobs: int,
        module: str,
        *words: str,
        budget_s: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start nothing yet: a class that was graded before needs no process.

        Args:
            jobs: the number of processes.
            module: what they run; it calls `serve`.
            words: its arguments.
            budget_s: as for `Child`.
            environment: as for `Child`.
        """
        self.slots = jobs
        command = (sys.executable, "-m", module, *words)
        self.children = [Child(command, budget_s, environment) for _ in range(jobs)]
        self.free: SimpleQueue[Child] = SimpleQueue()
        for child in self.children:
            self.free.put(child)
        self.threads = ThreadPoolExecutor(jobs, "grading")

    def submit(self, task: bytes) -> Future[bytes]:
        """Begin with a task; a process that dies of it is given it once more."""
        return self.threads.submit(self._ask, task, again=True)

    def judge(self, task: Json) -> Json | None:
        """Return the answer to a task, or None where the process ended before it answered."""
        try:
            answer: Json = json.loads(self._ask(json.dumps(task).encode()))
        except NoAnswer:
            return None
        return answer

    def _ask(self, task: bytes, *, again: bool = False) -> bytes:
        child = self.free.get()
        try:
            return child.ask(task, again=again)
        finally:
            self.free.put(child)

    def map(self, tasks: Iterable[Json]) -> Iterator[tuple[Json, Json | None]]:
        """Yield every task with its answer (see `judge`), as the answers come."""
        asked = {self.threads.submit(self.judge, task): task for task in tasks}
        for future in as_completed(asked):
            yield asked[future], future.result()

    def close(self) -> None:
        """End the processes and the workers below them; nothing more is begun."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        for child in self.children:
            child.end()
        for child in self.children:
            child.join()
        self.threads.shutdown()

    def __enter__(self) -> Pool:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def answered(answers: Iterable[tuple[Json, Json | None]]) -> Iterator[Json]:
    """Yield the answers alone.

    Raises:
        RuntimeError: one is missing.
    """
    for task, answer in answers:
        if answer is None:
            raise RuntimeError(f"the judging process ended at {json.dumps(task)[:200]}")
        yield answer


def serve(judge: Callable[[Json], Json]) -> None:
    """Answer every line of standard input; what else is printed goes to standard error."""
    protect_memory()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # This signal says that the one who asks has stopped. A shell's background jobs ignore SIGINT.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        for line in sys.stdin:
            print(json.dumps(judge(json.loads(line))), file=answers, flush=True)


def _end_with(parent: int) -> None:
    """End this process as soon as its parent has ended: nobody would read the answer."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
