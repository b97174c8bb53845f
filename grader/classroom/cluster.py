"""The same gradings on Dask: any scheduler, hence Slurm, PBS, LSF or Kubernetes.

Needs `pip install '.[cluster]'`, here and on the workers. What travels is the name of `grade`, the
bytes of a submission, and the bytes of its result.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any

from grader.classroom.store import BatchError
from grader.run.pool import ONE_THREAD, Child

LOCAL = "local"
COMMAND = (sys.executable, "-m", "grader.classroom.worker")
_ANSWER_S = 30.0
# Dask gives a task up when so many of its workers have died.
_RETRIES = 3

# Of this process, which on a cluster is a Dask worker.
_children: SimpleQueue[Child] = SimpleQueue()


def grade(task: bytes, budget_s: float) -> bytes:
    """Grade on this machine, in a process that is kept for the next task of this worker."""
    try:
        child = _children.get_nowait()
    except Empty:
        child = Child(COMMAND, budget_s, ONE_THREAD)
    try:
        return child.ask(task, again=True)
    finally:
        _children.put(child)


def plain_grade() -> Callable[[bytes, float], bytes]:
    """Return `grade` as a scheduler takes it that has no grader: it imports only where it runs.

    A function within a function travels by what it does, not by the name of its module.
    """

    def run(task: bytes, budget_s: float) -> bytes:
        from grader.classroom.cluster import grade

        return grade(task, budget_s)

    return run


def plain_probe() -> Callable[[], str]:
    """Return what tells, on a worker, why it could not grade; "" = it can."""

    def run() -> str:
        try:
            import grader.classroom.cluster  # noqa: F401
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    return run


class Cluster:
    """A Dask scheduler and its workers."""

    def __init__(self, address: str, jobs: int, budget_s: float) -> None:
        """Connect, or start a cluster here.

        Args:
            address: of the scheduler, such as tcp://10.0.0.7:8786; "local" starts one here.
            jobs: the workers of a cluster that is started here.
            budget_s: the seconds that one grading may take.

        Raises:
            BatchError: the extra is not installed, or nobody answers there.
        """
        try:
            # An extra, loaded only where it is asked for.
            distributed: Any = import_module("distributed")
        except ImportError:
            raise BatchError(
                "--cluster needs Dask: pip install '.[cluster]', here and on the workers"
            ) from None
        self.budget_s = budget_s
        self.cluster: Any = None
        where: Any = address
        try:
            if address == LOCAL:
                self.cluster = where = distributed.LocalCluster(
                    n_workers=jobs, threads_per_worker=1, dashboard_address=None
                )
            self.client = distributed.Client(where, timeout=_ANSWER_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise BatchError(
                f"--cluster {address}: no Dask scheduler answers there ({error}); expected an "
                f"address such as tcp://10.0.0.7:8786, or {LOCAL}"
            ) from None
        with contextlib.suppress(TimeoutError):  # a queue may take longer; the class then waits
            self.client.wait_for_workers(1, timeout=_ANSWER_S)
        lacking = {who: why for who, why in self.client.run(plain_probe()).items() if why}
        if lacking:
            who, why = next(iter(lacking.items()))
            self.client.close()
            raise BatchError(
                f"--cluster {address}: of its workers {len(lacking)} cannot grade, such as {who} "
                f"({why}); they need the lab's folder on PYTHONPATH and its packages"
            )
        self.executor = self.client.get_executor(pure=False, retries=_RETRIES)

    @property
    def slots(self) -> int:
        """Return the threads of all workers that are there now."""
        threads: dict[str, int] = self.client.nthreads()
        return max(1, sum(threads.values()))

    def submit(self, task: bytes) -> Future[bytes]:
        """Begin a grading."""
        future: Future[bytes] = self.executor.submit(plain_grade(), task, self.budget_s)
        return future

    def close(self) -> None:
        """Forget what is still at work; a scheduler that was there before goes on."""
        self.executor.shutdown(wait=False)
        self.client.close()
        if self.cluster is not None:
            self.cluster.close()
