"""The same gradings on Dask: any scheduler, hence Slurm, PBS, LSF or Kubernetes.

Needs `pip install '.[cluster]'`, here and on the workers. What travels is the name of `grade`, the
bytes of a submission, and the bytes of its result.
"""

from __future__ import annotations

import sys
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
        self.executor = self.client.get_executor(pure=False, retries=_RETRIES)

    @property
    def slots(self) -> int:
        """Return the threads of all workers that are there now."""
        threads: dict[str, int] = self.client.nthreads()
        return max(1, sum(threads.values()))

    def submit(self, task: bytes) -> Future[bytes]:
        """Begin a grading."""
        future: Future[bytes] = self.executor.submit(grade, task, self.budget_s)
        return future

    def close(self) -> None:
        """Forget what is still at work; a scheduler that was there before goes on."""
        self.executor.shutdown(wait=False)
        self.client.close()
        if self.cluster is not None:
            self.cluster.close()
