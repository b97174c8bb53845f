"""How a worker confines itself, after its fork and before it runs any of the student's code."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from grader.sandbox import kernel, landlock, seccomp

if sys.platform != "win32":
    import resource
    import signal


class LayerFailed(Exception):
    """A layer of the plan failed: the worker must not continue."""

    def __init__(self, layer: str, reason: str) -> None:
        """Keep the layer's name and why it failed."""
        super().__init__(f"isolation layer {layer}: {reason}")
        self.layer = layer
        self.reason = reason


@dataclass(frozen=True)
class Plan:
    """Everything a worker needs to know to confine itself; sizes in bytes, None = no limit.

    Attributes:
        scratch: the one folder it may write in, and its working directory.
        readable: files and folders it may read.
        landlock: whether the two above are enforced by Landlock.
        seccomp: whether system calls are filtered.
        uid: the user and group to become, or None to stay.
        address_space: of the process; None where a GPU is used.
        file_size: of any one file.
        cpu_seconds: of processor time, before the kernel ends the process.
        tasks: processes and threads of the user, including those already running.
        open_files: at the same time.
    """

    scratch: str
    readable: tuple[str, ...] = ()
    landlock: bool = False
    seccomp: bool = False
    uid: int | None = None
    address_space: int | None = None
    file_size: int | None = None
    cpu_seconds: int | None = None
    tasks: int | None = None
    open_files: int | None = 256

    def to_json(self) -> str:
        """Return the plan as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        return cls(**{**values, "readable": tuple(values["readable"])})


def enter(plan: Plan) -> dict[str, str]:
    """Confine this process permanently; call it while there is only one thread.

    Returns:
        Each layer's name with "active", or "skipped: " and the reason.

    Raises:
        LayerFailed: a layer that the plan asks for, or a base layer of this system, failed.
    """
    layers: dict[str, str] = {}
    for name, wanted, step in _steps(plan):
        if wanted is not True:
            layers[name] = f"skipped: {wanted or 'not asked for'}"
            continue
        try:
            step()
        except (OSError, ValueError) as error:
            raise LayerFailed(name, str(error)) from None
        layers[name] = "active"
    return layers


def _steps(plan: Plan) -> Iterator[tuple[str, bool | str, Callable[[], object]]]:
    """Yield each layer's name, whether it is wanted (or why it is impossible), and its action.

    The order matters: folders before limits, limits before the user changes, PDEATHSIG after
    (setresuid clears it), the filter last, because it refuses calls that the others make.
    """
    posix = os.name == "posix" or "needs a POSIX system"
    linux = sys.platform.startswith("linux") or "needs Linux"
    stays_root = linux is True and plan.uid is None and os.geteuid() == 0
    yield "scratch", True, lambda: _settle(plan.scratch)
    yield "session", posix, _lead_session
    yield "limits", posix, lambda: _limit(plan)
    yield "uid", plan.uid is not None, lambda: _become(plan)
    yield "capabilities", stays_root or "not root", kernel.drop_capabilities
    yield "parent_death", linux, _die_with_parent
    yield "no_new_privs", linux, lambda: kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    yield "landlock", plan.landlock, lambda: landlock.restrict(plan.readable, plan.scratch)
    yield "seccomp", plan.seccomp, seccomp.restrict


def _settle(scratch: str) -> None:
    os.chdir(scratch)
    os.umask(0o077)
    tempfile.tempdir = scratch
    for name in ("TMPDIR", "TMP", "TEMP", "HOME"):
        os.environ[name] = scratch


def _lead_session() -> None:
    if sys.platform != "win32" and os.getsid(0) != os.getpid():
        os.setsid()


def _limit(plan: Plan) -> None:
    if sys.platform == "win32":
        return
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: plan.file_size,
        resource.RLIMIT_NOFILE: plan.open_files,
        resource.RLIMIT_CPU: plan.cpu_seconds,
        resource.RLIMIT_NPROC: plan.tasks,
    }
    if sys.platform != "darwin":  # macOS refuses or ignores it
        wanted[resource.RLIMIT_AS] = plan.address_space
    for kind, value in wanted.items():
        if value is None:
            continue
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))


def _become(plan: Plan) -> None:
    uid = plan.uid
    if sys.platform == "win32" or sys.platform == "darwin" or uid is None:
        raise OSError("needs Linux")
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    for path in (plan.scratch, *plan.readable):
        if not os.access(path, os.R_OK):
            raise OSError(f"the other user cannot read {path}: it, or a folder above it, is closed")
    if not os.access(plan.scratch, os.W_OK):
        raise OSError(f"the other user cannot write in {plan.scratch}")


def _die_with_parent() -> None:
    if sys.platform != "win32":
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)


def close_other_fds(keep: set[int]) -> None:
    """Close every file descriptor but those in `keep`."""
    with contextlib.suppress(ValueError, OSError):
        last = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else 256
        start = 0
        for descriptor in sorted(keep):
            if start < descriptor:  # CPython 3.11's closerange(0, 0) closes every descriptor
                os.closerange(start, descriptor)
            start = descriptor + 1
        os.closerange(start, max(last, start + 1))
