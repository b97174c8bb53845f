"""The system call filter: a BPF program given to the kernel directly.

It is written out instead of built by libseccomp: there is no library to find or to load in every
worker, and both architectures below get the same filter. A refused call returns EPERM, so honest
code sees an ordinary PermissionError.

Source: docs.kernel.org/userspace-api/seccomp_filter.html.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys

from grader.sandbox import kernel

_MODE_FILTER = 2
_LOAD, _AND, _JUMP_EQUAL, _JUMP_FROM, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENT_0 = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_ABSENT = 0x00050000 | errno.ENOSYS

_AUDIT_NAMES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_FIRST = 0x40000000  # a second set of numbers for the same calls on x86_64

_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000

# fmt: off
# Name: its number on x86_64 and on aarch64 (None: that architecture has no such call).
REFUSED: dict[str, tuple[int, int | None]] = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "kcmp": (312, 272), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "setpriority": (141, 140),
    "ioprio_set": (251, 30), "migrate_pages": (256, 238), "move_pages": (279, 239),
    # a process of one's own that could outlive the run, and leaving the session
    "fork": (57, None), "vfork": (58, None), "setsid": (112, 157), "setpgid": (109, 154),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41),
    "mount": (165, 40), "umount2": (166, 39), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # sockets, and memory or queues that outlive the process or escape its limits
    "socket": (41, 198), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    # modes, owners, times and attributes, which Landlock leaves open on every file one owns
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "removexattrat": (466, 466), "file_setattr": (469, 469),
    # ways into the kernel that no student's code needs
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "open_by_handle_at": (304, 265), "personality": (135, 92), "syslog": (103, 116),
    "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
}
# Allowed when the first argument is the caller itself (its process id, or 0).
ONLY_SELF: dict[str, tuple[int, int]] = {
    "kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274),
}
CLONE: dict[str, tuple[int, int]] = {"clone": (56, 220), "clone3": (435, 435)}
# fmt: on

_Instruction = tuple[int, int, int, int]


class _Filter(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("operand", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Filter))]


def unsupported() -> str | None:
    """Return why there is no filter for this machine, or None."""
    if not sys.platform.startswith("linux"):
        return "needs Linux"
    machine = platform.machine()
    if machine not in _AUDIT_NAMES or sys.maxsize < 2**32:
        known = " and ".join(_AUDIT_NAMES)
        return f"no table of system calls for {machine} (only for 64-bit {known})"
    return None


def restrict() -> None:
    """Bind this thread and every thread it starts to the filter; needs no_new_privs.

    Raises:
        OSError: there is no filter for this machine, or the kernel refused it.
    """
    reason = unsupported()
    if reason:
        raise OSError(reason)
    instructions = program(platform.machine(), os.getpid())
    array = (_Filter * len(instructions))(*(_Filter(*words) for words in instructions))
    kernel.prctl(
        kernel.PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Program(len(instructions), array))
    )


def program(machine: str, pid: int) -> list[_Instruction]:
    """Return the filter for this architecture and process, one tuple for each instruction."""
    column = list(_AUDIT_NAMES).index(machine)
    code: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, _AUDIT_NAMES[machine]),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code += [(_JUMP_FROM, 0, 1, _X32_FIRST), (_RETURN, 0, 0, _REFUSE)]
    # The C library falls back to clone, whose flags can be read here, when clone3 does not exist.
    code += _when(CLONE["clone3"][column], [(_RETURN, 0, 0, _ABSENT)])
    code += _when(
        CLONE["clone"][column],
        [
            (_LOAD, 0, 0, _ARGUMENT_0),
            (_AND, 0, 0, _CLONE_THREAD | _CLONE_NAMESPACES),
            (_JUMP_EQUAL, 0, 1, _CLONE_THREAD),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _REFUSE),
        ],
    )
    for pair in ONLY_SELF.values():
        code += _when(
            pair[column],
            [
                (_LOAD, 0, 0, _ARGUMENT_0),
                (_JUMP_EQUAL, 1, 0, 0),
                (_JUMP_EQUAL, 0, 1, pid),
                (_RETURN, 0, 0, _ALLOW),
                (_RETURN, 0, 0, _REFUSE),
            ],
        )
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            code += _when(number, [(_RETURN, 0, 0, _REFUSE)])
    return [*code, (_RETURN, 0, 0, _ALLOW)]


def _when(number: int, body: list[_Instruction]) -> list[_Instruction]:
    """Run `body`, which must return, when the call has this number."""
    return [(_JUMP_EQUAL, 0, len(body), number), *body]
