"""Processes on this machine that grade, each with a referee of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from grader.pool import ROOT
from grader.sandbox.processes import kill_tree

ATTEMPTS = 2
COMMAND = (sys.executable, "-m", "grader.batch.worker")
# A referee that has graded so many makes room for a fresh one.
_TASKS_EACH = 200


class Engine(Protocol):
    """Whatever grades: processes here, a cluster, or a stand-in that a test puts in."""

    @property
    def slots(self) -> int:
        """Return how many submissions it works on at a time."""

    def submit(self, task: bytes) -> Future[bytes]:
        """Begin a grading."""

    def close(self) -> None:
        """End it and all of its processes."""


class Child:
    """One process; it is replaced when it ends, takes too long, or has done much."""

    def __init__(
        self, temporary: Path | None, budget_s: float, command: Sequence[str] = COMMAND
    ) -> None:
        """Start nothing yet; what it will leave behind lies below `temporary`."""
        self.command = command
        self.temporary = temporary
        self.budget_s = budget_s
        self.count = 0
        self.late = False
        self.ended = False
        # Whoever starts a process and whoever ends it for good take turns.
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def judge(self, task: bytes) -> bytes:
        """Return the answer to a task.

        Raises:
            RuntimeError: the process ended twice without one.
        """
        for _ in range(ATTEMPTS):
            answer = b"" if self.ended else self._ask(task)
            if answer:
                return answer
            if self.ended:
                raise RuntimeError("the batch was stopped")
            if self.late:
                raise RuntimeError(f"there was no result after {self.budget_s:.0f} seconds")
        assert self.process
        raise RuntimeError(f"the grader's process ended with {self.process.returncode}, twice")

    def _ask(self, task: bytes) -> bytes:
        if self.process is None or self.process.poll() is not None or self.count >= _TASKS_EACH:
            self.close()
            with self.lock:
                if self.ended:
                    return b""
                self._start()
        process = self.process
        assert process and process.stdin and process.stdout
        self.count += 1
        self.late = False
        clock = threading.Timer(self.budget_s, self._too_late, (process,))
        clock.daemon = True
        clock.start()
        try:
            process.stdin.write(task + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            clock.cancel()
        if not answer.endswith(b"\n"):  # it may have been killed while it wrote
            process.wait()
            return b""
        return answer

    def _too_late(self, process: subprocess.Popen[bytes]) -> None:
        self.late = True
        kill_tree(process.pid)

    def _start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if self.temporary is not None:
            environment["TMPDIR"] = str(self.temporary)
        self.count = 0
        self.process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C is for the batch, which then ends its processes.
            start_new_session=True,
        )

    def close(self) -> None:
        """Let it end; what it left of its own is its own to clear away."""
        if self.process is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.communicate()

    def kill(self) -> None:
        """End it and everything below it, at once and for good."""
        with self.lock:
            self.ended = True
        if self.process is not None and self.process.poll() is None:
            kill_tree(self.process.pid)


class Fleet:
    """`jobs` processes and as many threads that talk to them."""

    def __init__(
        self,
        jobs: int,
        budget_s: float,
        temporary: Path | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """Start nothing yet: a class that was graded before needs no process.

        Args:
            jobs: the number of processes.
            budget_s: the seconds that one grading may take.
            temporary: where the processes keep what they need for a while.
            command: of a process: it answers each line of its input by one.
        """
        self.jobs = jobs
        self.children = [Child(temporary, budget_s, command) for _ in range(jobs)]
        self.free: SimpleQueue[Child] = SimpleQueue()
        for child in self.children:
            self.free.put(child)
        self.threads = ThreadPoolExecutor(jobs, "grading")

    @property
    def slots(self) -> int:
        """Return the number of processes."""
        return self.jobs

    def submit(self, task: bytes) -> Future[bytes]:
        """Begin a grading."""
        return self.threads.submit(self._judge, task)

    def _judge(self, task: bytes) -> bytes:
        child = self.free.get()
        try:
            return child.judge(task)
        finally:
            self.free.put(child)

    def close(self) -> None:
        """End all processes, those at work too."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        if self.free.qsize() < self.jobs:
            for child in self.children:
                child.kill()
        self.threads.shutdown()
        for child in self.children:
            child.close()
