"""The system calls that Python 3.11 has no name for. Each raises OSError with the call's name and arguments."""

from __future__ import annotations

import ctypes
import os
import platform

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_SETATTR = 442  # the same number on every architecture
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2)."""
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), data.encode()
    )
    _check(result, f"mount({kind or source} at {target})")


def umount(target: str) -> None:
    """Detach what is mounted there."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount({target})")


def set_mount_attributes(target: str, attributes: int) -> None:
    """Add attributes to a mount and everything below it (Linux 5.12)."""
    values = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(target.encode()),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(values),
        ctypes.c_size_t(ctypes.sizeof(values)),
    )
    _check(result, f"mount_setattr({target})")


def pivot_root(new_root: str) -> None:
    """Make a mount the root, and forget the old one."""
    os.chdir(new_root)
    number = _PIVOT_ROOT[platform.machine()]
    result = _libc.syscall(ctypes.c_long(number), ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    _check(result, f"pivot_root({new_root})")
    umount(".")  # the old root lies above the new one now
    os.chdir("/")


def prctl(option: int, argument: int, *, what: str) -> None:
    """prctl(2) with one argument; `what` names it in errors."""
    rest = (ctypes.c_ulong(0),) * 3
    _check(_libc.prctl(option, ctypes.c_ulong(argument), *rest), f"prctl({what})")


def set_seccomp_filter(program: ctypes.Structure) -> None:
    """Install a filter, for this process and all that come from it."""
    result = _libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(program), ctypes.c_ulong(0), ctypes.c_ulong(0))
    _check(result, "prctl(PR_SET_SECCOMP)")


def drop_capabilities() -> None:
    """Give up all of them, for good."""
    for capability in range(_LAST_CAPABILITY + 1):
        if _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), ctypes.c_ulong(0), ctypes.c_ulong(0), 0) != 0:
            break  # beyond the last one that this kernel has; or we have none, and can't drop either
    _libc.prctl(PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_CLEAR_ALL), ctypes.c_ulong(0), ctypes.c_ulong(0), 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    number = _CAPSET[platform.machine()]
    _check(_libc.syscall(ctypes.c_long(number), ctypes.byref(header), ctypes.byref(nothing)), "capset()")


def set_host_name(name: str) -> None:
    """The name in this uts namespace."""
    _check(_libc.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname()")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
