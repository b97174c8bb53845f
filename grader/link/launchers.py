"""Ways to start a worker process: a zygote that forks, or spare processes with torch loaded."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psutil

from grader import sandbox
from grader.base.places import ZYGOTE
from grader.link import frames

LOG_EDGE = 1 << 16
HEARD = 1 << 20
START_S = 120.0


class WorkersUnavailable(Exception):
    """Worker processes cannot be started here: a fault of the grader, never of a submission."""


class LogDrain:
    """Reads what a worker prints, and keeps the first and the last 64 KiB."""

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
        """Return a buffer that collects what the process prints from now on, up to 1 MiB."""
        self.heard = heard = bytearray()
        return heard

    def text(self, since: int = 0) -> str:
        """Return what an ended process printed, with a line that says how much was not kept.

        Args:
            since: From this byte on; what is not kept counts as printed before.
        """
        self.thread.join(timeout=2.0)
        dropped = self.total - len(self.head) - len(self.tail)
        middle = f"\n[{dropped} bytes not kept]\n".encode() if dropped > 0 else b""
        whole = bytes(self.head) + middle + bytes(self.tail)
        return whole[since:].decode("utf-8", errors="replace")


class Started(NamedTuple):
    """A worker process, our end of its connection, and what it prints."""

    pid: int
    connection: socket.socket
    log: LogDrain


class Launcher(Protocol):
    """Something that can start a worker: a zygote that forks, or spare new processes."""

    def launch(self, plan: sandbox.Plan, tree: Path) -> Started:
        """Start a worker that will confine itself by `plan` and mount `tree`."""

    def exit_code(self, pid: int, wait_s: float) -> int | None:
        """Return the exit code of a worker that ended, negative for a signal, or None."""

    def end(self, pid: int) -> None:
        """Kill the worker and whatever it started."""

    def wait_ready(self) -> None:
        """Wait until everything is loaded that a worker needs to start."""

    def close(self) -> None:
        """End everything."""


def clean_environment(scratch: Path) -> dict[str, str]:
    """Return the only environment variables a worker sees."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    kept = {k: v for k, v in os.environ.items() if k.startswith("OPENBLAS_") and k not in threads}
    paths = {name: str(scratch) for name in ("HOME", "TMPDIR", "TMP", "TEMP")}
    system = {k: os.environ[k] for k in ("SYSTEMROOT", "PATHEXT") if k in os.environ}
    return threads | kept | paths | system | {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


class ForkLauncher:
    """Talks to the zygote (`zygote.py`)."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        """Start the zygote below `command`; it loads torch while the referee works."""
        self.command = command
        self.environment = dict(environment)
        self.log = log
        self.pids: dict[int, int] = {}
        self.count = 0
        self._start()

    def _start(self) -> None:
        self.control, theirs = socket.socketpair()
        script = [sys.executable, "-I", "-B", str(ZYGOTE), str(theirs.fileno())]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                self.command + script,
                pass_fds=[theirs.fileno()],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
            )
        theirs.close()
        self.pending = b""
        self.ready = False
        self.ended: dict[int, int] = {}

    def _ask(self, request: dict[str, Any], *descriptors: int) -> None:
        line = json.dumps(request).encode() + b"\n"
        try:
            if descriptors:
                socket.send_fds(self.control, [line], list(descriptors))
            else:
                self.control.sendall(line)
        except OSError as error:
            raise self._dead(str(error)) from None

    def _dead(self, reason: str) -> WorkersUnavailable:
        with contextlib.suppress(OSError):
            reason = self.log.read_text(errors="replace").strip()[-2000:] or reason
        return WorkersUnavailable(f"the zygote process ended: {reason}")

    def _listen(self, wanted: str, wait_s: float) -> dict[str, Any] | None:
        """Handle the zygote's lines until one holds the key `wanted`."""
        deadline = time.monotonic() + wait_s
        while True:
            *lines, self.pending = self.pending.split(b"\n")
            answer = None
            for line in lines:
                message: dict[str, Any] = json.loads(line)
                if "ended" in message:
                    self.ended[message["ended"]] = message["code"]
                if wanted in message:
                    answer = message
            if answer is not None:
                return answer
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self.control.settimeout(left)
            try:
                data = self.control.recv(1 << 16)
            except TimeoutError:
                return None
            except OSError as error:
                raise self._dead(str(error)) from None
            finally:
                self.control.settimeout(None)
            if not data:
                raise self._dead("no output")
            self.pending += data

    def wait_ready(self) -> None:
        """Wait until torch is loaded."""
        if not self.ready and self._listen("ready", START_S) is None:
            raise WorkersUnavailable(f"the zygote was not ready after {START_S:.0f} s")
        self.ready = True

    def launch(self, plan: sandbox.Plan, tree: Path) -> Started:
        """Fork a worker, from a new zygote where a submission has ended the old one."""
        try:
            return self._fork(plan, tree)
        except WorkersUnavailable:
            if not self.ready:
                raise
        self.control.close()
        sandbox.kill_tree(self.process.pid)
        self.process.wait()
        self._start()
        return self._fork(plan, tree)

    def _fork(self, plan: sandbox.Plan, tree: Path) -> Started:
        self.wait_ready()
        self.count += 1
        request = {"do": "fork", "id": self.count, "plan": plan.to_json(), "tree": str(tree)}
        log = LogDrain()
        ours, theirs = socket.socketpair()
        try:
            self._ask(request, theirs.fileno(), log.write_end)
            answer = self._listen("forked", START_S)
            if answer is None:
                raise WorkersUnavailable("the zygote did not fork")
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(log.write_end)
        # In a process-id namespace of its own the zygote sees other numbers than we do.
        pid = self._outer_pid(int(answer["pid"]))
        self.pids[pid] = self.count
        return Started(pid, ours, log)

    def _outer_pid(self, inner: int) -> int:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(OSError, psutil.Error):
                for line in Path(f"/proc/{child.pid}/status").read_text().splitlines():
                    if line.startswith("NSpid:") and int(line.split()[-1]) == inner:
                        return child.pid
        return inner

    def exit_code(self, pid: int, wait_s: float) -> int | None:
        """Return how the worker ended; wait up to `wait_s` seconds for the zygote to say so."""
        worker = self.pids[pid]
        deadline = time.monotonic() + wait_s
        with contextlib.suppress(WorkersUnavailable):  # its zygote ended with it
            while worker not in self.ended and time.monotonic() < deadline:
                self._listen("ended", deadline - time.monotonic())
        return self.ended.get(worker)

    def end(self, pid: int) -> None:
        """Kill the worker's tree, then what its zygote adopted."""
        sandbox.kill_tree(pid)
        with contextlib.suppress(WorkersUnavailable):
            self._ask({"do": "sweep"})
            self._listen("swept", START_S)

    def close(self) -> None:
        """End the zygote and every process below it."""
        self.control.close()
        try:
            self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            sandbox.kill_tree(self.process.pid)
            self.process.wait()


class SpareLauncher:
    """Keeps one spare process with torch loaded, for systems where a fork is not safe.

    Each process becomes one worker; its successor starts at the same moment.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the first spare."""
        self.environment = dict(environment)
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.spare = self._spawn()

    def _spawn(self) -> Started:
        log = LogDrain()
        ours, theirs = socket.socketpair()
        windows = sys.platform == "win32"
        place = "stdin" if windows else str(theirs.fileno())
        script = [sys.executable, "-I", "-B", str(ZYGOTE), place, "one"]
        with theirs:
            process = subprocess.Popen(
                script,
                pass_fds=[] if windows else [theirs.fileno()],
                env=self.environment,
                stdin=subprocess.PIPE if windows else subprocess.DEVNULL,
                stdout=log.write_end,
                stderr=log.write_end,
                cwd=None if windows else "/",
                start_new_session=True,
            )
            if sys.platform == "win32" and process.stdin:
                # On Windows a process gets a socket by a description, not by inheritance.
                process.stdin.write(base64.b64encode(theirs.share(process.pid)) + b"\n")
                process.stdin.close()
        os.close(log.write_end)
        self.running[process.pid] = process
        return Started(process.pid, ours, log)

    def launch(self, plan: sandbox.Plan, tree: Path) -> Started:
        """Make the spare process the worker and start another spare."""
        started, self.spare = self.spare, self._spawn()
        channel = frames.Channel(started.connection)
        with contextlib.suppress(frames.Closed):  # `Worker.hello` will find out
            channel.send({"plan": plan.to_json(), "tree": str(tree)}, time.monotonic() + START_S)
        return started

    def exit_code(self, pid: int, wait_s: float) -> int | None:
        """Return how the worker ended; wait up to `wait_s` seconds for it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.running[pid].wait(wait_s)
        return None

    def end(self, pid: int) -> None:
        """Kill the worker and whatever it started."""
        sandbox.kill_tree(pid)
        self.running.pop(pid).wait()

    def wait_ready(self) -> None:
        """Do nothing: here the first frame waits for torch."""

    def close(self) -> None:
        """End every process."""
        for pid in list(self.running):
            self.end(pid)
        self.spare.connection.close()
