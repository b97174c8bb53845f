"""The zygote: trusted code that loads torch and forks one worker per request; holds no secrets.

Started as `python -I -B zygote.py FD`, it reads and writes JSON lines on its control socket FD. A
request to fork brings two descriptors, the worker's connection and its log. Where a fork is not
safe, it is started as `zygote.py FD one` and becomes the worker itself: FD is then the worker's
connection, and the first frame names the plan and the tree.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

# It is started by its path, so nothing of the grader can be imported yet.
ROOT = str(Path(__file__).resolve().parents[2])


def preload() -> None:
    """Import torch and the worker's code, on one thread, then remove them from the search path."""
    sys.path.insert(0, ROOT)
    # Imports leave no garbage, and looking for it takes a tenth of their time.
    gc.disable()
    import torch

    torch.set_num_threads(1)
    import grader.worker.worker  # noqa: F401
    from grader.worker import forbidden_calls
    from grader.worker.eager import leave_compiler

    leave_compiler()
    forbidden_calls.install()
    run_once(torch)

    sys.path.remove(ROOT)
    # Workers then neither search these objects for garbage nor copy their memory.
    gc.freeze()
    gc.enable()


def run_once(torch: Any) -> None:
    """Run a small pass, so that torch initialises here once and not in every worker.

    Without gradients: with a GPU the first backward pass starts threads, and a process with threads
    cannot fork safely.
    """
    with torch.no_grad(), torch.autograd.profiler.record_function("first"):
        weight = torch.ones(3, 3)
        torch.nn.functional.layer_norm(weight @ weight, (3,)).softmax(dim=-1)


def become_worker(request: dict[str, Any], descriptors: list[int], keep: int) -> None:
    """Turn this fresh child into the worker of `request`; never returns."""
    from grader import sandbox
    from grader.worker import worker

    code = 0
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection, log = descriptors
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.close(keep)
        sandbox.close_other_fds({0, 1, 2, connection})
        worker.serve(
            socket.socket(fileno=connection),
            sandbox.Plan.from_json(request["plan"]),
            request["tree"],
        )
    except BaseException as error:  # the referee reads EOF; the log says why
        code = 70
        print(f"worker: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


class Zygote:
    """The loop that forks, reaps and answers."""

    def __init__(self, control: socket.socket) -> None:
        """Listen on `control`."""
        self.control = control
        self.running: dict[int, int] = {}

    def tell(self, message: dict[str, Any]) -> None:
        """Send one line to the referee."""
        self.control.sendall(json.dumps(message).encode() + b"\n")

    def loop(self) -> None:
        """Serve until the referee closes the control socket."""
        wake_in, wake_out = os.pipe()
        os.set_blocking(wake_out, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        pending = b""
        while True:
            sources: list[int] = [self.control.fileno(), wake_in]
            ready, _, _ = select.select(sources, [], [])
            if wake_in in ready:
                os.read(wake_in, 512)
                self.reap()
            if self.control.fileno() not in ready:
                continue
            data, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 2)
            if not data:
                return
            pending += data
            *lines, pending = pending.split(b"\n")
            for line in lines:
                self.serve(json.loads(line), descriptors)

    def serve(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Do what one line asks."""
        if request["do"] == "sweep":
            self.sweep()
            self.tell({"swept": True})
            return
        pid = os.fork()
        if pid == 0:
            become_worker(request, descriptors, self.control.fileno())
        for descriptor in descriptors:
            os.close(descriptor)
        self.running[pid] = request["id"]
        self.tell({"forked": request["id"], "pid": pid})

    def reap(self) -> None:
        """Report each worker that ended, and wait for the orphans that this process adopted."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.running:
                code = os.waitstatus_to_exitcode(status)
                self.tell({"ended": self.running.pop(pid), "code": code})

    def sweep(self) -> None:
        """Kill every adopted process that is not a worker, until no new ones appear."""
        from grader import sandbox

        for _ in range(100):
            strays = [pid for pid in sandbox.children_of(os.getpid()) if pid not in self.running]
            if not strays:
                return
            for pid in strays:
                sandbox.kill_tree(pid)
            self.reap()


def become_only_worker(connection: socket.socket) -> None:
    """Turn this process into the worker that the first frame on `connection` describes."""
    from grader import sandbox
    from grader.link import frames
    from grader.worker import worker

    channel = frames.Channel(connection)
    try:
        first = channel.receive(max_payload=0)
        worker.serve(connection, sandbox.Plan.from_json(first["plan"]), first["tree"])
    except frames.Closed:
        return


def take_over(place: str) -> socket.socket:
    """Return the inherited socket: from its descriptor, or its description on standard input."""
    if sys.platform == "win32":
        return socket.fromshare(base64.b64decode(sys.stdin.readline()))
    return socket.socket(fileno=int(place))


def main() -> None:
    """Load torch, report that, and serve."""
    control = take_over(sys.argv[1])
    preload()
    if "one" in sys.argv[2:]:
        become_only_worker(control)
        return
    from grader import sandbox

    sandbox.become_subreaper()
    zygote = Zygote(control)
    zygote.tell({"ready": os.getpid()})
    zygote.loop()
    # A regular exit would take torch apart piece by piece while the referee waits.
    os._exit(0)


if __name__ == "__main__":
    main()
