"""The system call filter: a classic BPF program that says no to what no honest program needs.

A denied call fails with EPERM, an unknown one with ENOSYS (so that libraries take their older way), a call by another
ABI ends the process. The kernel runs the program for each call: the list is a chain of comparisons, ~100 ns.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

from argosy.sandbox import kernel

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Machine → AUDIT_ARCH_*, column of the tables below."""

_DENIED: dict[str, tuple[int | None, int | None]] = {
    # other processes' memory and control
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # the kernel itself
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "personality": (135, 92),
    "seccomp": (317, 277),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
    # clocks and names
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # files by handle, all files at once
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    # memory that no limit of a process sees
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
}
_CLONE, _CLONE3, _SOCKET, _SOCKETPAIR = (56, 220), (435, 435), (41, 198), (53, 199)
_PRLIMIT, _IOCTL, _SIGACTION = (302, 261), (16, 29), (13, 134)
_FIRST_UNKNOWN = 451
"""Calls from this number on came after the list was made."""
_X32_BIT = 0x40000000
_CLONE_NAMESPACES = 0x7E020000  # all CLONE_NEW* that clone() has
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_AF_UNIX = 1
_SIGCHLD = 17

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24  # offsets in struct seccomp_data; arguments' low halves
_SECOND_HIGH = 28
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000

_Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def supported() -> bool:
    """Whether this machine's processor is in the tables."""
    return platform.machine() in _ARCHITECTURES


def install(*, children_signals: bool = False) -> None:
    """Filter this process from now on. Raises OSError. It needs no_new_privs or CAP_SYS_ADMIN.

    `children_signals`: the program may say what happens on SIGCHLD. The kernel forgets the processor time of children
    that end while their parent ignores it.
    """
    filtered = instructions(platform.machine(), children_signals=children_signals)
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in filtered)
    kernel.set_seccomp_filter(_Program(len(code) // 8, code))


def instructions(machine: str, *, children_signals: bool = False) -> list[_Instruction]:
    """The program for a machine: (opcode, steps if true, steps if false, operand)."""
    architecture, column = _ARCHITECTURES[machine]
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        program += [(_ANY_BIT, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL)]
    program += _when(_AT_LEAST, _FIRST_UNKNOWN, errno.ENOSYS) + _when(_EQUAL, _CLONE3[column], errno.ENOSYS)
    for numbers in _DENIED.values():
        number = numbers[column]
        if number is not None:
            program += _when(_EQUAL, number, errno.EPERM)
    for call in (_SOCKET, _SOCKETPAIR):
        program += _arguments(call[column], [(_LOAD, 0, 0, _FIRST), (_EQUAL, 1, 0, _AF_UNIX), _error(errno.EPERM)])
    namespaces = [(_LOAD, 0, 0, _FIRST), (_ANY_BIT, 0, 1, _CLONE_NAMESPACES), _error(errno.EPERM)]
    program += _arguments(_CLONE[column], namespaces)
    program += _arguments(_PRLIMIT[column], [(_LOAD, 0, 0, _FIRST), (_EQUAL, 1, 0, 0), _error(errno.EPERM)])
    terminal = [(_LOAD, 0, 0, _SECOND), (_EQUAL, 1, 0, _TIOCSTI), (_EQUAL, 0, 1, _TIOCLINUX), _error(errno.EPERM)]
    program += _arguments(_IOCTL[column], terminal)
    if not children_signals:  # asking what it is (a second argument of NULL) is allowed
        ignoring = [
            (_LOAD, 0, 0, _FIRST), (_EQUAL, 0, 5, _SIGCHLD), (_LOAD, 0, 0, _SECOND), (_EQUAL, 0, 2, 0),
            (_LOAD, 0, 0, _SECOND_HIGH), (_EQUAL, 1, 0, 0), _error(errno.EPERM),
        ]  # fmt: skip
        program += _arguments(_SIGACTION[column], ignoring)
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _error(number: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _when(comparison: int, operand: int, error: int) -> list[_Instruction]:
    return [(comparison, 0, 1, operand), _error(error)]


def _arguments(number: int, check: list[_Instruction]) -> list[_Instruction]:
    """`check` for one call. What falls out of it at its end is allowed."""
    return [(_EQUAL, 0, len(check) + 1, number), *check, (_RETURN, 0, 0, _ALLOW)]
