"""Workers forked from a zygote that has loaded torch already (`zygote.py`)."""

from __future__ import annotations

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
from typing import Any

import psutil

from grader import sandbox
from grader.launchers import (
    HERE,
    START_S,
    LogDrain,
    Started,
    WorkersUnavailable,
    tree_resident,
)


class ForkLauncher:
    """Talks to the zygote (`zygote.py`)."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        """Start the zygote with `command` before its own; it preloads while the referee goes on."""
        self.command = command
        self.environment = dict(environment)
        self.log = log
        # A training that runs ahead asks for workers from a thread of its own.
        self.turn = threading.RLock()
        self.pids: dict[int, int] = {}
        self.count = 0
        self._start()

    def _start(self) -> None:
        self.control, theirs = socket.socketpair()
        script = [sys.executable, "-I", "-B", str(HERE / "zygote.py"), str(theirs.fileno())]
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
        with self.turn:
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
        # Inside a process-id namespace the zygote counts otherwise than we do.
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
        """Return how the worker ended, waiting up to `wait_s` seconds for the word."""
        worker = self.pids[pid]
        deadline = time.monotonic() + wait_s
        with self.turn, contextlib.suppress(WorkersUnavailable):  # its zygote ended with it
            while worker not in self.ended and time.monotonic() < deadline:
                self._listen("ended", deadline - time.monotonic())
        return self.ended.get(worker)

    def end(self, pid: int) -> None:
        """Kill the worker's tree, then what its zygote adopted."""
        sandbox.kill_tree(pid)
        with self.turn, contextlib.suppress(WorkersUnavailable):
            self._ask({"do": "sweep"})
            self._listen("swept", START_S)

    def resident_bytes(self, pid: int) -> int:
        """Return the resident memory of the worker's tree and of adopted strays."""
        return tree_resident(pid)

    def close(self) -> None:
        """End the zygote and every process below it."""
        self.control.close()
        try:
            self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            sandbox.kill_tree(self.process.pid)
            self.process.wait()
