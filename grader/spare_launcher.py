"""Workers started fresh, that load torch while they wait: for where a fork is unsafe."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from grader import frames, sandbox
from grader.launchers import HERE, START_S, LogDrain, Started, tree_resident


class SpareLauncher:
    """Keeps one fresh process with torch loaded; for systems where a fork is not safe.

    Each process becomes one worker; its successor starts at the same moment.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the first spare."""
        self.environment = dict(environment)
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.turn = threading.Lock()
        self.spare = self._spawn()

    def _spawn(self) -> Started:
        log = LogDrain()
        ours, theirs = socket.socketpair()
        windows = sys.platform == "win32"
        place = "stdin" if windows else str(theirs.fileno())
        script = [sys.executable, "-I", "-B", str(HERE / "zygote.py"), place, "one"]
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
                # There a process takes over a socket by a description, not by inheritance.
                process.stdin.write(base64.b64encode(theirs.share(process.pid)) + b"\n")
                process.stdin.close()
        os.close(log.write_end)
        self.running[process.pid] = process
        return Started(process.pid, ours, log)

    def launch(self, plan: sandbox.Plan, tree: Path) -> Started:
        """Make the spare process the worker and start another spare."""
        with self.turn:
            started, self.spare = self.spare, self._spawn()
        channel = frames.Channel(started.connection)
        with contextlib.suppress(frames.Closed):  # `Worker.hello` will find out
            channel.send({"plan": plan.to_json(), "tree": str(tree)}, time.monotonic() + START_S)
        return started

    def exit_code(self, pid: int, wait_s: float) -> int | None:
        """Return how the worker ended, waiting up to `wait_s` seconds for it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.running[pid].wait(wait_s)
        return None

    def end(self, pid: int) -> None:
        """Kill the worker and whatever it started."""
        sandbox.kill_tree(pid)
        self.running.pop(pid).wait()

    def resident_bytes(self, pid: int) -> int:
        """Return the resident memory of the worker and whatever it started."""
        return tree_resident(pid)

    def wait_ready(self) -> None:
        """Return: here it is the first frame that waits for torch."""

    def close(self) -> None:
        """End every process."""
        for pid in list(self.running):
            self.end(pid)
        self.spare.connection.close()
