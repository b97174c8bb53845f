"""The filter of system calls, run by a small interpreter: also for the machine we are not on."""

from __future__ import annotations

import ctypes
import signal

import pytest

from grader.sandbox import seccomp


def verdict(machine: str, number: int, argument: int = 0, architecture: int | None = None) -> str:
    """Return what the filter answers to a call of process 4217."""
    if architecture is None:
        architecture = seccomp._AUDIT_NAMES[machine]
    data = {0: number, 4: architecture, 16: argument & 0xFFFFFFFF}
    code, at, value = seccomp.program(machine, 4217), 0, 0
    while True:
        kind, if_true, if_false, operand = code[at]
        at += 1
        if kind == seccomp._LOAD:
            value = data[operand]
        elif kind == seccomp._AND:
            value &= operand
        elif kind == seccomp._JUMP_EQUAL:
            at += if_true if value == operand else if_false
        elif kind == seccomp._JUMP_FROM:
            at += if_true if value >= operand else if_false
        else:
            names = {seccomp._ALLOW: "allow", seccomp._REFUSE: "EPERM", seccomp._ABSENT: "ENOSYS"}
            return names[operand]


MACHINES = pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])


@MACHINES
def test_filter_refuses_every_listed_call_and_no_other(machine: str, column: int) -> None:
    refused = {pair[column] for pair in seccomp.REFUSED.values()} - {None}
    special = {pair[column] for pair in [*seccomp.ONLY_SELF.values(), *seccomp.CLONE.values()]}
    found = {n for n in range(500) if n not in special and verdict(machine, n) != "allow"}
    assert found == refused


@MACHINES
def test_filter_allows_threads_but_no_processes(machine: str, column: int) -> None:
    number = seccomp.CLONE["clone"][column]
    thread = 0x003D0F00  # what the C library asks for
    assert verdict(machine, number, thread) == "allow"
    assert verdict(machine, number, signal.SIGCHLD) == "EPERM"
    for namespace in (0x10000000, 0x20000, 0x40000000):
        assert verdict(machine, number, thread | namespace) == "EPERM"
    assert verdict(machine, seccomp.CLONE["clone3"][column]) == "ENOSYS"


@MACHINES
@pytest.mark.parametrize("name", sorted(seccomp.ONLY_SELF))
def test_filter_allows_calls_on_oneself_only(machine: str, column: int, name: str) -> None:
    number = seccomp.ONLY_SELF[name][column]
    assert [verdict(machine, number, pid) for pid in (0, 4217)] == ["allow", "allow"]
    assert [verdict(machine, number, pid) for pid in (1, 4216, -1)] == ["EPERM"] * 3


def test_filter_refuses_the_other_doors_to_the_kernel() -> None:
    assert verdict("x86_64", 0x40000000) == "EPERM"
    assert verdict("x86_64", 1, architecture=0x40000003) == "EPERM"
    assert verdict("aarch64", 64, architecture=0x40000028) == "EPERM"


@pytest.mark.parametrize("name", [*seccomp.REFUSED, *seccomp.ONLY_SELF, *seccomp.CLONE])
def test_filter_numbers_agree_with_libseccomp(name: str) -> None:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("libseccomp.so.2, which knows the numbers, is not installed")
    table = seccomp.REFUSED | seccomp.ONLY_SELF | seccomp.CLONE
    for token, number in zip(seccomp._AUDIT_NAMES.values(), table[name], strict=True):
        found = library.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(token), name.encode())
        if found == -1:
            pytest.skip(f"this libseccomp does not know {name}")
        assert (found if found >= 0 else None) == number
