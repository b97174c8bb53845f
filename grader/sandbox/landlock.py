"""Landlock: the kernel's own sandbox for unprivileged processes (Linux 5.13 and later).

Source: docs.kernel.org/userspace-api/landlock.html.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable

from grader.sandbox import kernel

# The same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
REFER, TRUNCATE = 1 << 13, 1 << 14
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
_READ = EXECUTE | READ_FILE | READ_DIR
# No links, sockets or devices: nothing in a scratch folder may point or lead outside.
_SCRATCH = (
    READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG
    | REFER
)  # fmt: skip

TCP_ABI, SCOPE_ABI = 4, 6
_BIND_AND_CONNECT_TCP = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11

_PROCESS_FILES = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def abi() -> int:
    """Return the Landlock ABI of this kernel, 0 where there is none."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        return kernel.syscall(_CREATE_RULESET, 0, 0, _VERSION)
    except OSError:
        return 0


def handled_rights(version: int) -> int:
    """Return every file right that this ABI can deny."""
    bits = 13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16
    return (1 << bits) - 1


def restrict(readable: Iterable[str], scratch: str) -> None:
    """Bind this thread and its children: read and execute below `readable`, write in `scratch`.

    Also no TCP (ABI 4) and no signals or abstract sockets to processes outside (ABI 6).

    Args:
        readable: files and folders; missing ones are skipped.
        scratch: the one folder that may be written.

    Raises:
        OSError: the kernel has no Landlock, or a path cannot be opened.
    """
    version = abi()
    if version == 0:
        raise OSError("this kernel has no Landlock (it needs Linux 5.13 with Landlock enabled)")
    handled = handled_rights(version)
    words = [handled]
    if version >= TCP_ABI:
        words.append(_BIND_AND_CONNECT_TCP)
    if version >= SCOPE_ABI:
        words.append(_ABSTRACT_SOCKETS_AND_SIGNALS)
    attributes = (ctypes.c_uint64 * len(words))(*words)
    ruleset = kernel.syscall(_CREATE_RULESET, attributes, ctypes.sizeof(attributes), 0)
    try:
        for path in (*readable, *_PROCESS_FILES):
            _allow(ruleset, path, _READ & handled)
        for path in _DEVICES:
            _allow(ruleset, path, (READ_FILE | WRITE_FILE) & handled)
        _allow(ruleset, scratch, _SCRATCH & handled)
        kernel.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS
        rule = _PathBeneath(rights, parent)
        kernel.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)
