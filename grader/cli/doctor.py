"""What this machine offers: versions, size, and which isolation layers really work here."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from grader.sandbox import Isolation, choose

_PACKAGES = ("torch", "numpy", "safetensors", "pytest")
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
# What a Landlock ABI lacks, and the first that has it.
_LANDLOCK_LACKS = ((3, "truncating files"), (4, "TCP"), (6, "signals to the grader"))
HIDDEN = "yes: a submission cannot read the grader's files"
OPEN = "no: a submission can read every file that you can; grade strangers' code elsewhere"


@dataclass(frozen=True)
class Survey:
    """What was found; `memory_mib` and `cores` are what this process may use.

    Attributes:
        versions: name and version, or "not installed".
        system: operating system and machine.
        cores: processor cores.
        memory_mib: memory, or the container's limit where that is less.
        isolation: what `auto` takes.
        seconds: how long choosing it took.
    """

    versions: dict[str, str]
    system: str
    cores: int
    memory_mib: int
    isolation: Isolation
    seconds: float


def survey() -> Survey:
    """Look at this machine; torch is not imported, only asked for its version."""
    begun = time.perf_counter()
    isolation = choose("auto")
    seconds = time.perf_counter() - begun
    versions = {"python": f"{platform.python_version()} ({sys.executable})"}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return Survey(
        versions=versions,
        system=f"{platform.system()} {platform.release()} on {platform.machine()}",
        cores=_cores(),
        memory_mib=_memory() >> 20,
        isolation=isolation,
        seconds=seconds,
    )


def text(found: Survey | None = None) -> str:
    """Return the survey as plain text, one fact on each line."""
    found = found or survey()
    isolation = found.isolation
    rows = found.versions | {
        "system": found.system,
        "cores": str(found.cores),
        "memory": f"{found.memory_mib} MiB",
        "isolation": f"{isolation.level} (found in {found.seconds * 1000:.0f} ms)",
        **{f"  {name}": state for name, state in isolation.layers.items()},
        "  Landlock ABI": _on_abi(isolation.landlock_abi),
        "contained": HIDDEN if isolation.contained else OPEN,
    }
    width = max(map(len, rows))
    return "".join(f"{name:<{width}}  {value}\n" for name, value in rows.items())


def _on_abi(abi: int) -> str:
    if abi == 0:
        return "none"
    lacks = [what for first, what in _LANDLOCK_LACKS if abi < first]
    return f"{abi}, which does not cover {', '.join(lacks)}" if lacks else str(abi)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int:
    """Return the bytes of memory, or the container's limit where that is less."""
    limits = [psutil.virtual_memory().total]
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(path.read_text()))
    return min(limits)
