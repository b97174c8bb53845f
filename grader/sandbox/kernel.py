"""The few Linux calls that the standard library does not wrap."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1 << 1, 1 << 2


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def prctl(option: int, *arguments: Any) -> None:
    """Change an attribute of this process, with integers or pointers as arguments.

    Raises:
        OSError: the kernel refused.
    """
    words = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    words += [ctypes.c_ulong(0)] * (4 - len(words))
    _checked(_libc().prctl(option, *words))


def syscall(number: int, *arguments: Any) -> int:
    """Make the system call of this number, with integers or pointers.

    Raises:
        OSError: the kernel refused.
    """
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc().syscall(ctypes.c_long(number), *words))


def drop_capabilities() -> None:
    """Give up every capability of root but those it may need to read its own installation.

    The two that are kept only widen file access, which Landlock narrows again. Root needs them to
    run an interpreter in another user's closed home folder.
    """
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # Two records (bits 0 to 31, then 32 to 63) of effective, permitted, inheritable.
    held = (ctypes.c_uint32 * 6)()
    _checked(_libc().capget(header, held))
    kept = held[1] & (_CAP_DAC_OVERRIDE | _CAP_DAC_READ_SEARCH)
    _checked(_libc().capset(header, (ctypes.c_uint32 * 6)(kept, kept)))
