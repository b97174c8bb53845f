"""Every layer is tried from inside: a confined child attempts what it must not be able to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grader import sandbox
from grader.sandbox import isolation, landlock, seccomp

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the layers need a POSIX system")

ROOT = Path(__file__).resolve().parent.parent
LINUX = sys.platform.startswith("linux")

needs_linux = pytest.mark.skipif(not LINUX, reason="needs Linux")
needs_root = pytest.mark.skipif(
    not LINUX or os.geteuid() != 0, reason="only root can change the user"
)
needs_landlock = pytest.mark.skipif(
    landlock.abi() < 1, reason="this kernel has no Landlock (Linux 5.13 or later has)"
)
needs_scopes = pytest.mark.skipif(
    landlock.abi() < landlock.SCOPE_ABI,
    reason=f"Landlock ABI {landlock.abi()} here, signals and sockets are scoped from 6",
)
needs_seccomp = pytest.mark.skipif(
    seccomp.unsupported() is not None, reason=f"no filter here: {seccomp.unsupported()}"
)

# Each attempt is one statement; it is blocked when it raises one of the three below.
ATTEMPTS = {
    "read a file outside": "open(SECRET).read()",
    "list a folder outside": "os.listdir(os.path.dirname(SECRET))",
    "overwrite a file outside": "open(SECRET, 'w')",
    "create a file outside": "open(SECRET + '.new', 'w')",
    "create a file in /tmp": "p = f'/tmp/grader-test-{PARENT}'; open(p, 'w'); os.remove(p)",
    "link to a file outside": "os.symlink(SECRET, 'link'); open('link').read()",
    "make a device": "os.mkfifo('fifo')",
    "read the parent's memory": "open(f'/proc/{PARENT}/mem', 'rb')",
    "read the parent's environment": "open(f'/proc/{PARENT}/environ', 'rb').read()",
    "read the parent's command": "open(f'/proc/{PARENT}/cmdline', 'rb').read()",
    "signal the parent": "os.kill(PARENT, 0)",
    "signal everything": "os.kill(-1, 0)",
    "limit the parent": "resource.prlimit(PARENT, resource.RLIMIT_NOFILE)",
    "pin the parent": "os.sched_setaffinity(PARENT, os.sched_getaffinity(0))",
    "trace the parent": "check(libc.ptrace(0x4206, PARENT, 0, 0))",
    "connect by TCP": "socket.create_connection(('127.0.0.1', PORT), 2)",
    "connect to an abstract socket": "socket.socket(socket.AF_UNIX).connect(ABSTRACT)",
    "open an UDP socket": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "open a local socket": "socket.socket(socket.AF_UNIX)",
    "fork": "os.fork() or os._exit(0)",
    "start a program": "subprocess.run(['/bin/true'])",
    "leave by posix_spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "make a user namespace": "check(libc.unshare(0x10000000))",
    "clone into a namespace": "check(libc.syscall(CLONE, 0x10000011, 0, 0, 0, 0)) or os._exit(0)",
    "keep memory in a nameless file": "os.memfd_create('x')",
    "keep a shared segment": "check(libc.shmget(0, 4096, 0o1600))",
    "change a file's mode": "os.chmod(SECRET, 0o644)",
    "change a file's times": "os.utime(SECRET)",
    "become another user": "os.setuid(12345)",
    "give a file away": "open('own', 'w').close(); os.chown('own', 12345, 12345)",
    "take 8 GiB of memory": "bytearray(8 << 30)",
    "write a file over its limit": "open('big', 'wb').write(bytes(3 << 20))",
    "open 300 files": "[open('/dev/null') for _ in range(300)]",
    "raise its own limits": "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))",
}
HONEST = {
    "write in scratch": "os.makedirs('a/b'); open('a/x', 'w'); os.rename('a/x', 'a/b/y')",
    "remove in scratch": "open('z', 'w').close(); os.remove('z')",
    "temporary file": "tempfile.TemporaryFile().write(b'x')",
    "touch": "pathlib.Path('touched').touch(); pathlib.Path('touched').touch()",
    "read the tree": "open(TREE + '/task.py').read()",
    "import lazily": "import decimal, csv, fractions, concurrent.futures, xml.dom",
    "threads": "t = threading.Thread(target=len, args=('',)); t.start(); t.join()",
    "randomness": "os.urandom(8); open('/dev/urandom', 'rb').read(1)",
    "devices": "open('/dev/null', 'w').write('x')",
    "own status": "open('/proc/self/status').read(); open('/proc/cpuinfo').read()",
    "own signal": "signal.signal(signal.SIGUSR1, print); os.kill(os.getpid(), signal.SIGUSR1)",
    "clocks": "time.sleep(0.001); time.process_time()",
    "own limits": "resource.getrlimit(resource.RLIMIT_AS)",
    "pipes": "os.pipe(); socket.socketpair",
    "modest memory": "bytearray(64 << 20)",
}
SCRIPT = """
import ctypes, json, os, pathlib, resource, signal, socket, subprocess, sys, tempfile
import threading, time
sys.path.insert(0, ROOT)
from grader.sandbox import Plan, enter
libc = ctypes.CDLL(None, use_errno=True)
PARENT = os.getppid()
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
def attempt(statement):
    try:
        exec(statement, globals())
    except (OSError, MemoryError, ValueError) as error:
        return f"blocked: {error!r}"
    return "open"
enter(Plan.from_json(PLAN))
print(json.dumps({name: attempt(text) for name, text in ATTEMPTS.items()}))
"""


def confined(plan: sandbox.Plan, attempts: dict[str, str], **names: object) -> dict[str, str]:
    """Try the attempts in a fresh process confined by `plan`; each is "open" or "blocked: ..."."""
    known = {"ROOT": str(ROOT), "PLAN": plan.to_json(), "ATTEMPTS": attempts, **names}
    setting = "".join(f"{name} = {value!r}\n" for name, value in known.items())
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", setting + SCRIPT],
        capture_output=True, text=True, timeout=30, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """A secret, a tree, and listeners on TCP and on an abstract socket."""
    folder = tmp_path_factory.mktemp("ground")
    (folder / "outside").mkdir()
    (folder / "outside" / "secret").write_text("expected values")
    (folder / "tree").mkdir()
    (folder / "tree" / "task.py").write_text("x = 1\n")
    abstract = f"\0grader-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as local:
        if LINUX:
            local.bind(abstract)
            local.listen(5)
        yield {
            "SECRET": str(folder / "outside" / "secret"),
            "TREE": str(folder / "tree"),
            "PORT": tcp.getsockname()[1],
            "ABSTRACT": abstract,
            "CLONE": seccomp.CLONE["clone"][os.uname().machine == "aarch64"],
        }


LIMITS = sandbox.Plan(
    scratch="", address_space=4 << 30, file_size=2 << 20, cpu_seconds=60, open_files=64
)


def plan_for(folder: Path, tree: object, **layers: bool) -> sandbox.Plan:
    scratch = folder / "scratch"
    scratch.mkdir()
    runtime = isolation._outermost((*isolation._SYSTEM, sys.prefix, sys.base_prefix, str(tree)))
    return replace(LIMITS, scratch=str(scratch), readable=runtime, **layers)


@pytest.fixture(scope="module")
def seen(
    ground: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, str]]:
    """What each set of layers let through, tried once and kept."""
    kept: dict[str, dict[str, str]] = {}

    def look(layers: str) -> dict[str, str]:
        if layers not in kept:
            on = {name: True for name in layers.split("+") if name != "portable"}
            plan = plan_for(tmp_path_factory.mktemp("run"), ground["TREE"], **on)
            kept[layers] = confined(plan, ATTEMPTS | HONEST, **ground)
        return kept[layers]

    return look


LIMITED = [
    "take 8 GiB of memory",
    "write a file over its limit",
    "open 300 files",
    "raise its own limits",
]
BY_LANDLOCK = [
    "read a file outside",
    "list a folder outside",
    "overwrite a file outside",
    "create a file outside",
    "create a file in /tmp",
    "link to a file outside",
    "make a device",
    "read the parent's memory",
    "read the parent's environment",
    "read the parent's command",
    "trace the parent",
]
BY_SCOPES = ["signal the parent", "connect to an abstract socket"]
BY_SECCOMP = [
    "signal the parent",
    "signal everything",
    "limit the parent",
    "pin the parent",
    "trace the parent",
    "connect by TCP",
    "open an UDP socket",
    "open a local socket",
    "connect to an abstract socket",
    "fork",
    "start a program",
    "leave by posix_spawn",
    "make a user namespace",
    "clone into a namespace",
    "keep memory in a nameless file",
    "keep a shared segment",
    "change a file's mode",
    "change a file's times",
]
BY_LOST_CAPABILITIES = ["become another user", "give a file away"]


@needs_linux
@pytest.mark.parametrize("name", LIMITED)
def test_limits_stop(name: str, seen: Callable[[str], dict[str, str]]) -> None:
    assert seen("portable")[name].startswith("blocked")


@needs_linux
@pytest.mark.parametrize("name", BY_LOST_CAPABILITIES)
def test_lost_capabilities_stop(name: str, seen: Callable[[str], dict[str, str]]) -> None:
    assert seen("portable")[name].startswith("blocked")


@needs_landlock
@pytest.mark.parametrize("name", BY_LANDLOCK)
def test_landlock_stops(name: str, seen: Callable[[str], dict[str, str]]) -> None:
    assert seen("landlock")[name].startswith("blocked")


@needs_scopes
@pytest.mark.parametrize("name", [*BY_SCOPES, "connect by TCP"])
def test_landlock_scopes_stop(name: str, seen: Callable[[str], dict[str, str]]) -> None:
    assert seen("landlock")[name].startswith("blocked")


@needs_seccomp
@pytest.mark.parametrize("name", BY_SECCOMP)
def test_seccomp_stops(name: str, seen: Callable[[str], dict[str, str]]) -> None:
    assert seen("seccomp")[name].startswith("blocked")


@needs_landlock
@needs_seccomp
def test_landlock_and_seccomp_leave_nothing_open(seen: Callable[[str], dict[str, str]]) -> None:
    answers = seen("landlock+seccomp")
    assert [name for name in ATTEMPTS if not answers[name].startswith("blocked")] == []


@needs_linux
def test_attempts_are_real_where_nothing_blocks_them(seen: Callable[[str], dict[str, str]]) -> None:
    answers = seen("portable")
    for name in ("read a file outside", "signal the parent", "connect by TCP", "fork"):
        assert answers[name] == "open", name


@pytest.mark.parametrize(
    "layers",
    [
        "portable",
        pytest.param("landlock", marks=needs_landlock),
        pytest.param("seccomp", marks=needs_seccomp),
        pytest.param("landlock+seccomp", marks=[needs_landlock, needs_seccomp]),
    ],
)
def test_honest_code_is_not_hindered(layers: str, seen: Callable[[str], dict[str, str]]) -> None:
    answers = seen(layers)
    assert {name: answers[name] for name in HONEST} == dict.fromkeys(HONEST, "open")


def test_enter_reports_every_layer(tmp_path: Path, ground: dict[str, object]) -> None:
    code = "print(json.dumps(enter(Plan.from_json(PLAN))))"
    plan = plan_for(tmp_path, ground["TREE"], landlock=landlock.abi() > 0)
    script = SCRIPT.split("enter(Plan")[0] + code
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", f"ROOT={str(ROOT)!r};PLAN={plan.to_json()!r}\n{script}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    layers = json.loads(done.stdout)
    assert list(layers) == [
        "scratch", "session", "limits", "uid", "capabilities", "parent_death", "no_new_privs",
        "landlock", "seccomp",
    ]  # fmt: skip
    assert layers["limits"] == "active"
    assert layers["uid"] == "skipped: not asked for"
    assert layers["landlock"] == ("active" if landlock.abi() else "skipped: not asked for")


def in_child(action: Callable[[], None]) -> str:
    """Run `action` in a forked child and return the exception it ended with, or nothing."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except BaseException as error:
            os.write(write_end, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    return text


def test_requested_layer_that_fails_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    plan = sandbox.Plan(scratch=str(tmp_path), landlock=True)
    text = in_child(lambda: print(sandbox.enter(plan)))
    assert text.startswith("LayerFailed: isolation layer landlock: this kernel has no Landlock")


def test_missing_scratch_raises(tmp_path: Path) -> None:
    plan = sandbox.Plan(scratch=str(tmp_path / "nowhere"))
    text = in_child(lambda: print(sandbox.enter(plan)))
    assert text.startswith("LayerFailed: isolation layer scratch: [Errno 2]")


@needs_root
def test_uid_layer_names_a_folder_that_the_other_user_cannot_read(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    os.chown(scratch, 60579, 60579)
    closed = tmp_path / "closed"
    (closed / "tree").mkdir(parents=True)
    closed.chmod(0o700)
    plan = sandbox.Plan(str(scratch), readable=(str(closed / "tree"),), uid=60579)
    text = in_child(lambda: print(sandbox.enter(plan)))
    assert text.startswith("LayerFailed: isolation layer uid: the other user cannot read ")


def test_plan_survives_json() -> None:
    plan = sandbox.Plan("/s", ("/a", "/b"), True, True, 7, 11, 13, 17, 19, 23)
    assert sandbox.Plan.from_json(plan.to_json()) == plan
