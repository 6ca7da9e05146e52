"""The system call filter: its numbers beside the kernel's own headers, and its program run by hand for each machine."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from argosy.sandbox import kernel, seccomp

HEADERS = {
    "x86_64": [Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h")],
    "aarch64": [Path("/usr/include/asm-generic/unistd.h")],  # arm64 takes the generic table as it is
}
COLUMN = {"x86_64": 0, "aarch64": 1}
ALSO = {
    "clone": seccomp._CLONE, "clone3": seccomp._CLONE3, "socket": seccomp._SOCKET, "socketpair": seccomp._SOCKETPAIR,
    "prlimit64": seccomp._PRLIMIT, "ioctl": seccomp._IOCTL, "rt_sigaction": seccomp._SIGACTION,
}  # fmt: skip
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
KILL, ALLOW = 0x80000000, 0x7FFF0000


def numbers_of(machine: str) -> dict[str, int]:
    """Name → number, from the header."""
    header = next((path for path in HEADERS[machine] if path.exists()), None)
    if header is None:
        pytest.skip(f"no header with the system calls of {machine}")
    text = header.read_text()
    found = dict(re.findall(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)\b", text))
    return {name: int(number) for name, number in found.items()}


@pytest.mark.parametrize("machine", COLUMN)
def test_g6_numbers_are_the_kernels(machine: str) -> None:
    numbers, column = numbers_of(machine), COLUMN[machine]
    ours = {name: pair[column] for name, pair in (seccomp._DENIED | ALSO).items()}
    wrong = {name: (number, numbers.get(name)) for name, number in ours.items() if number != numbers.get(name)}
    known = {name: pair for name, pair in wrong.items() if pair[1] is not None or pair[0] is not None}
    newer = {name for name, (_, theirs) in known.items() if theirs is None}  # than the headers, or gone from them
    assert {name: pair for name, pair in known.items() if name not in newer} == {}
    assert newer <= {
        "_sysctl",
        "nfsservctl",
        "lookup_dcookie",
        "uselib",
        "memfd_secret",
        "quotactl_fd",
        "process_mrelease",
    }


@pytest.mark.parametrize("machine", COLUMN)
def test_g6_no_new_call_is_known(machine: str) -> None:
    """Calls that came after the list was made don't exist for programs."""
    numbers = [number for name, number in numbers_of(machine).items() if not name.startswith(("syscalls", "arch"))]
    for number in (*[number for number in numbers if number >= seccomp._FIRST_UNKNOWN], 451, 462, 1000):
        assert verdict(machine, number) == errno.ENOSYS


@pytest.mark.parametrize(("name", "pair"), [("pivot_root", kernel._PIVOT_ROOT), ("capset", kernel._CAPSET)])
@pytest.mark.parametrize("machine", COLUMN)
def test_what_we_call_by_number_is_right(machine: str, name: str, pair: dict[str, int]) -> None:
    assert pair[machine] == numbers_of(machine)[name]
    assert numbers_of(machine).get("mount_setattr", kernel._MOUNT_SETATTR) == kernel._MOUNT_SETATTR


def verdict(machine: str, number: int, arguments: Sequence[int] = (), *, arch: int | None = None, **how: bool) -> int:
    """What the filter says: 0 for allowed, an errno, or -9."""
    data = bytearray(64)
    data[0:4] = number.to_bytes(4, "little")
    data[4:8] = (ARCHITECTURE[machine] if arch is None else arch).to_bytes(4, "little")
    for index, argument in enumerate(arguments):
        data[16 + 8 * index : 24 + 8 * index] = argument.to_bytes(8, "little")
    program, at, accumulator = seccomp.instructions(machine, **how), 0, 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        if code == 0x20:
            accumulator = int.from_bytes(data[operand : operand + 4], "little")
        elif code == 0x06:
            if operand in (KILL, ALLOW):
                return -signal.SIGKILL if operand == KILL else 0
            return operand & 0xFFFF
        else:
            truth = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}[
                code
            ]
            at += if_true if truth else if_false


@pytest.mark.parametrize("machine", COLUMN)
def test_g6_the_program_of_each_machine(machine: str) -> None:
    column = COLUMN[machine]
    number = {name: pair[column] for name, pair in (seccomp._DENIED | ALSO).items() if pair[column] is not None}

    def says(name: str, *arguments: int, **how: bool) -> int:
        return verdict(machine, int(number[name] or 0), arguments, **how)

    assert {name: says(name) for name in seccomp._DENIED if name in number if says(name) != errno.EPERM} == {}
    assert says("clone3") == errno.ENOSYS
    assert (says("clone", 0x11), says("clone", 0x10000000), says("clone", 0x20000011)) == (0, errno.EPERM, errno.EPERM)
    assert (says("socket", 1), says("socket", 2), says("socketpair", 1)) == (0, errno.EPERM, 0)
    assert (says("prlimit64", 0), says("prlimit64", 7)) == (0, errno.EPERM)
    assert (says("ioctl", 0, 0x5401), says("ioctl", 0, 0x5412), says("ioctl", 0, 0x541C)) == (
        0,
        errno.EPERM,
        errno.EPERM,
    )
    sigchld, act = 17, 1 << 40
    assert (says("rt_sigaction", sigchld, act), says("rt_sigaction", sigchld, 0)) == (errno.EPERM, 0)
    assert (says("rt_sigaction", 15, act), says("rt_sigaction", sigchld, act, children_signals=True)) == (0, 0)
    other = "aarch64" if machine == "x86_64" else "x86_64"
    assert verdict(machine, 0, arch=ARCHITECTURE[other]) == -signal.SIGKILL
    if machine == "x86_64":
        assert verdict(machine, 0x40000000 | 1) == -signal.SIGKILL  # x32
    assert verdict(machine, {"x86_64": 1, "aarch64": 64}[machine]) == 0  # write
