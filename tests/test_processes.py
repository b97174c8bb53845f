"""Ending a tree of processes, whatever its members did to leave it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from grader import sandbox
from grader.sandbox import isolation, processes

ROOT = Path(__file__).resolve().parent.parent
needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX system")


def alive(pid: int) -> bool:
    return processes._state(pid) not in processes._ENDED


DAEMON = """
import os, sys, time
sys.path.insert(0, ROOT)
from grader import sandbox
sandbox.become_subreaper()
worker = os.fork()
if worker == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            time.sleep(60)
        os._exit(0)
    time.sleep(AFTER)
    os._exit(0)
print(worker, flush=True)
time.sleep(60)
"""


@needs_linux
@pytest.mark.parametrize("worker_stays", [True, False])
def test_kill_tree_ends_a_daemon_that_left_its_session(worker_stays: bool) -> None:
    text = f"ROOT = {str(ROOT)!r}; AFTER = {60 if worker_stays else 0}\n{DAEMON}"
    zygote = subprocess.Popen([sys.executable, "-I", "-c", text], stdout=subprocess.PIPE, text=True)
    assert zygote.stdout is not None
    pids = [int(zygote.stdout.readline()) for _ in range(2)]
    if not worker_stays:
        time.sleep(0.05)
    assert sum(alive(pid) for pid in pids) == (2 if worker_stays else 1)
    sandbox.kill_tree(zygote.pid)
    zygote.wait()
    zygote.stdout.close()
    assert not any(alive(pid) for pid in pids)


@needs_linux
def test_kill_tree_ends_processes_that_go_on_forking() -> None:
    bomb = """
        import os, time
        print("x", flush=True)
        for _ in range(4):
            os.fork()
        while True:
            if os.fork() == 0:
                time.sleep(0.002)
                os._exit(0)
            os.wait()
    """
    for _ in range(3):
        command = [sys.executable, "-I", "-S", "-c", textwrap.dedent(bomb)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.01)
        sandbox.kill_tree(process.pid)
        process.wait()
        # Ends when the last holder of the pipe is gone: at once, or never.
        ended, _, _ = select.select([process.stdout], [], [], 5.0)
        assert ended
        assert process.stdout.read() == b""
        process.stdout.close()


def test_kill_tree_of_a_dead_process_is_harmless() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    sandbox.kill_tree(process.pid)


@needs_linux
def test_worker_dies_with_its_parent(tmp_path: Path) -> None:
    code = """
        import os, sys, time
        sys.path.insert(0, ROOT)
        from grader import sandbox
        if os.fork() == 0:
            sandbox.enter(sandbox.Plan(SCRATCH))
            print(os.getpid(), flush=True)
            time.sleep(60)
        time.sleep(60)
    """
    text = f"ROOT = {str(ROOT)!r}; SCRATCH = {str(tmp_path)!r}\n" + textwrap.dedent(code)
    parent = subprocess.Popen([sys.executable, "-I", "-c", text], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert alive(worker)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while alive(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(worker)


@needs_linux
def test_limit_of_tasks_stops_a_fork_bomb() -> None:
    uid = isolation._free_uid() if os.geteuid() == 0 else None  # the limit does not bind root
    scratch = Path(tempfile.mkdtemp())
    if uid is not None:
        os.chown(scratch, uid, uid)
    running = processes.count_tasks(os.getuid() if uid is None else uid)
    code = """
        import os, signal, sys
        sys.path.insert(0, ROOT)
        from grader import sandbox
        sandbox.enter(sandbox.Plan(SCRATCH, uid=UID, tasks=TASKS))
        try:
            for count in range(40):
                if os.fork() == 0:
                    signal.pause()
        except BlockingIOError:
            print(count, flush=True)
        signal.pause()
    """
    names = {"ROOT": str(ROOT), "SCRATCH": str(scratch), "UID": uid, "TASKS": running + 7}
    text = "".join(f"{k} = {v!r}\n" for k, v in names.items()) + textwrap.dedent(code)
    process = subprocess.Popen([sys.executable, "-I", "-c", text], stdout=subprocess.PIPE)
    assert process.stdout is not None
    count = process.stdout.readline()
    sandbox.kill_tree(process.pid)
    process.wait()
    process.stdout.close()
    scratch.rmdir()
    assert 0 < int(count) < 7 if uid else int(count) < 40


def test_close_other_fds_keeps_only_what_is_named() -> None:
    code = """
        import os, sys
        sys.path.insert(0, ROOT)
        from grader.sandbox import close_other_fds
        kept, other = os.open('/dev/null', 0), os.open('/dev/null', 0)
        high = os.dup2(other, 200)
        close_other_fds({0, 1, 2, kept})
        os.fstat(kept)
        for closed in (other, high):
            try:
                os.fstat(closed)
            except OSError:
                print('closed')
    """
    text = f"ROOT = {str(ROOT)!r}\n" + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-I", "-c", text], capture_output=True, check=True)
    assert done.stdout.split() == [b"closed", b"closed"]
