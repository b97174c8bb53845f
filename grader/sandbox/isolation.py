"""Find the layers that work on this machine by trying them, and plan a worker with them."""

from __future__ import annotations

import functools
import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from grader.base.places import GRADER, ROOT
from grader.sandbox import landlock, processes, seccomp
from grader.sandbox.confine import Plan
from grader.sandbox.probe import INNER_LAYERS, Answer, Task, try_layers

if TYPE_CHECKING:
    from grader.base.settings import Limits

LAYERS = ("landlock", "seccomp", "uid", "bwrap")

# What a zygote imports. Below bwrap the rest of the grader does not exist.
WORKER_SIDE = (
    "__init__.py", "worker", "probes", "link/__init__.py", "link/frames.py", "base/__init__.py",
    "base/places.py", "base/forbidden.py", "sandbox",
)  # fmt: skip
# The grader's files are hidden if a confined process cannot read this one, which no worker needs.
_WITNESS = GRADER / "intake" / "policy.py"

_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/nix/store", "/etc/ld.so.cache")
_HARDWARE = ("/sys/devices/system/cpu",)
# Free for local use: above every account of a distribution, below systemd's dynamic ones.
_FIRST_UID, _NUM_UIDS = 60578, 600
_TASKS_ALLOWED = 256
_COUNT_EVERY_S = 10.0
_SHARED_MEMORY_BYTES = 64 << 20
_PROBE_S = 30.0


class IsolationUnavailable(Exception):
    """The isolation that was asked for does not work here; the message says why."""


@dataclass(frozen=True)
class Isolation:
    """The layers in use.

    Attributes:
        level: the names of the layers that separate, joined by "+"; or "portable".
        contained: whether a worker cannot read the grader's files.
        layers: every layer's name with "active", or "skipped: " and the reason.
        landlock_abi: of this kernel, 0 where there is none.
        readable: what a worker may read besides its tree.
        uid: the user a worker runs as, None for the grader's own.
    """

    level: str
    contained: bool
    layers: Mapping[str, str]
    landlock_abi: int
    readable: tuple[str, ...]
    uid: int | None

    def active(self, layer: str) -> bool:
        """Tell whether this layer is in use."""
        return self.layers[layer] == "active"

    def command(self, trees: Path, scratches: Path) -> list[str]:
        """Return the words that precede the zygote's own command.

        Args:
            trees: holds the staged trees; must be readable.
            scratches: holds the scratch folders; must be writable.
        """
        if not self.active("bwrap"):
            return []
        own = sorted(str(path) for name in WORKER_SIDE for path in GRADER.glob(name))
        return _bwrap(self.uid, (*self.readable, *own, str(trees)), str(scratches))

    def plan(self, *, tree: Path, scratch: Path, limits: Limits) -> Plan:
        """Return a worker's plan, and give its scratch folder to the user that it will run as."""
        uid = self.uid
        if uid is not None and os.name == "posix":
            os.chown(scratch, uid, uid)
        return Plan(
            scratch=str(scratch),
            readable=(*self.readable, str(tree)),
            landlock=self.active("landlock"),
            seccomp=self.active("seccomp"),
            # Below bwrap the zygote has already become the user; no other one exists there.
            uid=None if self.active("bwrap") else uid,
            address_space=limits.address_space_mib << 20,
            file_size=limits.written_file_mib << 20,
            # Ends a worker that is no longer watched; while it is, the referee's clock is faster.
            cpu_seconds=int(2 * limits.check_s),
            tasks=_task_limit(uid),
        )


def choose(requested: str = "auto", python: str = sys.executable) -> Isolation:
    """Return the isolation to grade with; this process keeps the answer.

    Args:
        requested: "auto" (all that works), "portable" (none), or names of `LAYERS` joined by "+".
        python: the interpreter that workers run.

    Raises:
        IsolationUnavailable: a layer named in `requested` is unknown or does not work here.
    """
    if requested == "portable":
        layers = dict.fromkeys(LAYERS, "skipped: not asked for")
        return Isolation("portable", False, layers, landlock.abi(), (), None)
    names = LAYERS if requested == "auto" else tuple(requested.split("+"))
    unknown = [name for name in names if name not in LAYERS]
    if unknown:
        known = ", ".join(LAYERS)
        raise IsolationUnavailable(
            f"isolation must be auto, portable, or one or more of {known} joined by '+', "
            f"got {requested!r}"
        )
    found = _find(frozenset(names), python)
    for name in names:
        if requested != "auto" and not found.active(name):
            reason = found.layers[name].removeprefix("skipped: ")
            raise IsolationUnavailable(
                f"isolation {name!r} was asked for and does not work here: {reason}; "
                "--isolation auto takes the strongest that works"
            )
    return found


@functools.lru_cache
def _find(names: frozenset[str], python: str) -> Isolation:
    """Try the named layers (and the filter of system calls, which costs nothing) together."""
    skipped = {name: _obstacle(name) for name in LAYERS}
    skipped |= {n: "not asked for" for n in LAYERS if n not in names and n != "seccomp"}
    wanted = [name for name in INNER_LAYERS if not skipped[name]]
    readable = _outermost((*_SYSTEM, *_HARDWARE, *_runtime(python)))
    uid = _free_uid()
    with tempfile.TemporaryDirectory(prefix="grader-probe-") as folder:
        os.chmod(folder, 0o755)
        scratch = Path(folder, "scratch")
        scratch.mkdir(mode=0o700)
        if "uid" in wanted:
            try:
                os.chown(scratch, uid, uid)
            except OSError as error:  # a user namespace that has no such user
                skipped["uid"] = f"no file can be given to user {uid}: {error.strerror}"
                wanted.remove("uid")
        must_read = (os.path.realpath(python), *_runtime(python))
        task = Task(tuple(wanted), uid, str(scratch), readable, must_read, str(_WITNESS))
        answer = try_layers(task)
        skipped |= answer.skipped
        as_uid = uid if "uid" in answer.layers else None
        if not skipped["bwrap"]:
            inner = tuple(name for name in answer.layers if name != "uid")
            below = _try_bwrap(python, as_uid, replace(task, layers=inner))
            skipped["bwrap"] = below.skipped.get("bwrap", "")
            answer = answer if skipped["bwrap"] else below
    layers = {n: f"skipped: {skipped[n]}" if skipped[n] else "active" for n in LAYERS}
    separating = [n for n in LAYERS if n != "seccomp" and layers[n] == "active"]
    return Isolation(
        level="+".join(separating) or "portable",
        contained=answer.hidden,
        layers=layers,
        landlock_abi=landlock.abi(),
        readable=readable,
        uid=as_uid,
    )


def _obstacle(layer: str) -> str:
    """Return why a layer cannot work here, or an empty text."""
    if not sys.platform.startswith("linux"):
        return "needs Linux"
    if layer == "landlock" and not landlock.abi():
        return "this kernel has no Landlock (it needs Linux 5.13 with Landlock enabled)"
    if layer == "seccomp":
        return seccomp.unsupported() or ""
    if layer == "uid" and os.geteuid() != 0:
        return "only root can change the user"
    if layer == "bwrap" and not shutil.which("bwrap"):
        return "bwrap (package bubblewrap) is not installed"
    return ""


def _try_bwrap(python: str, uid: int | None, task: Task) -> Answer:
    """Try the task's layers below bwrap, in another interpreter as `uid`."""
    if uid is None and os.geteuid() == 0:
        os.chown(task.scratch, 0, 0)
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
        "from grader.sandbox.probe import main; main()"
    )
    prefix = _bwrap(
        uid,
        (*task.readable, str(GRADER / "sandbox"), str(GRADER / "base" / "places.py")),
        task.scratch,
    )
    command = [*prefix, python, "-I", "-S", "-B", "-c", code, task.to_json()]
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, env={}, cwd="/",
            timeout=_PROBE_S,
        )  # fmt: skip
        answer = Answer(**json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError) as error:
        return Answer((), {"bwrap": str(error)}, False)
    except ValueError:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return Answer((), {"bwrap": (lines or [f"exit code {done.returncode}"])[-1]}, False)
    if answer.skipped:
        return replace(answer, skipped={"bwrap": f"below it other layers fail: {answer.skipped}"})
    return answer


def _bwrap(uid: int | None, readable: Iterable[str], scratches: str) -> list[str]:
    """Return a bwrap command: new namespaces, no network, and no files but these.

    Root has to become the other user first: bwrap's own --uid leaves it root behind the map.
    """
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
    binds = [
        word for path in readable if os.path.exists(path) for word in ("--ro-bind", path, path)
    ]
    size = ["--size", str(_SHARED_MEMORY_BYTES)]
    return [
        *([] if uid is None else become),
        shutil.which("bwrap") or "bwrap",
        "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
        "--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/dev/shm",
        *binds, "--bind", scratches, scratches, "--remount-ro", "/", "--chdir", "/", "--",
    ]  # fmt: skip


@functools.lru_cache
def _runtime(python: str) -> tuple[str, ...]:
    """Return the folders from which an interpreter loads modules, with links followed and not."""
    if python == sys.executable:
        prefix, base, *path = sys.prefix, sys.base_prefix, *sys.path
    else:
        code = "import sys; print(sys.prefix, sys.base_prefix, *sys.path, sep='\\n')"
        command = [python, "-I", "-c", code]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        prefix, base, *path = done.stdout.splitlines()
    # Workers run with -I, so a user's own packages are not theirs.
    packages = [
        folder
        for folder in path
        if os.path.basename(folder) in ("site-packages", "dist-packages")
        and folder != site.getusersitepackages()
    ]
    named = [folder for folder in (prefix, base, *packages) if os.path.isdir(folder)]
    return tuple(dict.fromkeys(p for name in named for p in (name, os.path.realpath(name))))


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the existing paths, without those inside another."""
    kept: list[str] = []
    for path in sorted({os.path.abspath(p) for p in paths if os.path.exists(p)}):
        if not any(path.startswith(outer.rstrip("/") + "/") for outer in kept):
            kept.append(path)
    return tuple(kept)


def _free_uid() -> int:
    """Return a user number without account and process; each grader tends to get another one."""
    if sys.platform == "win32":
        return 0
    import pwd

    for step in range(_NUM_UIDS):
        uid = _FIRST_UID + (os.getpid() + step) % _NUM_UIDS
        try:
            pwd.getpwuid(uid)
        except KeyError:
            if not (os.path.isdir("/proc/self") and processes.count_tasks(uid)):
                return uid
    return _FIRST_UID


def _task_limit(uid: int | None) -> int | None:
    """Return how many processes and threads the worker's user may have, including running ones."""
    if not sys.platform.startswith("linux"):
        return None
    user = os.getuid() if uid is None else uid
    return _TASKS_ALLOWED + _recent_tasks(user, int(time.monotonic() / _COUNT_EVERY_S))


@functools.lru_cache(maxsize=1)
def _recent_tasks(uid: int, moment: int) -> int:
    """Count them at most once in each `moment`: on a busy desktop that takes 10 ms."""
    return processes.count_tasks(uid)
