"""Ways to start a worker process: a zygote that forks, or spare processes with torch loaded."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil

from grader import sandbox

HERE = Path(__file__).resolve().parent
LOG_EDGE = 1 << 16
HEARD = 1 << 20
START_S = 120.0


class WorkersUnavailable(Exception):
    """The worker processes cannot be started here: the grader's fault, never a submission's."""


class LogDrain:
    """Reads what a worker prints, keeps the first and last 64 KiB, throws the rest away."""

    def __init__(self) -> None:
        """Open the pipe and start reading."""
        self.read_end, self.write_end = os.pipe()
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0
        self.heard: bytearray | None = None
        self.thread = threading.Thread(target=self._drain, daemon=True)
        self.thread.start()

    def _drain(self) -> None:
        while True:
            try:
                data = os.read(self.read_end, 1 << 20)
            except OSError:
                return
            if not data:
                os.close(self.read_end)
                return
            room = LOG_EDGE - len(self.head)
            self.head += data[:room]
            self.tail = (self.tail + data[max(room, 0) :])[-LOG_EDGE:]
            self.total += len(data)
            heard = self.heard
            if heard is not None:
                heard.extend(data[: max(0, HEARD - len(heard))])

    def hear(self) -> bytearray:
        """Return what a living process prints from now on, as it comes, 1 MiB at most."""
        self.heard = heard = bytearray()
        return heard

    def text(self) -> str:
        """Return what an ended process printed, with a line that says how much was not kept."""
        self.thread.join(timeout=2.0)
        dropped = self.total - len(self.head) - len(self.tail)
        middle = f"\n[{dropped} bytes not kept]\n".encode() if dropped > 0 else b""
        return (bytes(self.head) + middle + bytes(self.tail)).decode("utf-8", errors="replace")


class Started(NamedTuple):
    """A worker process, our end of its connection, and what it prints."""

    pid: int
    connection: socket.socket
    log: LogDrain


class Launcher(Protocol):
    """Whatever can start a worker: a zygote that forks, or spare fresh processes."""

    def launch(self, plan: sandbox.Plan, tree: Path) -> Started:
        """Start a worker that will confine itself by `plan` and mount `tree`."""

    def exit_code(self, pid: int, wait_s: float) -> int | None:
        """Return the exit code of a worker that ended, negative for a signal, or None."""

    def end(self, pid: int) -> None:
        """Kill the worker and whatever it started."""

    def resident_bytes(self, pid: int) -> int:
        """Return the resident memory of the worker and whatever it started."""

    def wait_ready(self) -> None:
        """Wait until no more is to be loaded before a worker can start."""

    def close(self) -> None:
        """End everything."""


def clean_environment(scratch: Path) -> dict[str, str]:
    """Return the only environment variables a worker sees."""
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    kept = {k: v for k, v in os.environ.items() if k.startswith("OPENBLAS_") and k not in threads}
    paths = {name: str(scratch) for name in ("HOME", "TMPDIR", "TMP", "TEMP")}
    system = {k: os.environ[k] for k in ("SYSTEMROOT", "PATHEXT") if k in os.environ}
    return threads | kept | paths | system | {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def tree_resident(pid: int) -> int:
    """Return the resident memory of a process and of everything below it, in bytes."""
    total = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += member.memory_info().rss
    return total
