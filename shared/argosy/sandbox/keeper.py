"""The process that makes cells: `python -I -S …`, started by `runner`, one per reward worker.

It has imported what programs commonly import, so that a cell is a fork and not a start of an interpreter. It runs our
code only, has no more than one thread, and ends with the worker.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from argosy.sandbox import cell, kernel, messages, rootfs, seccomp

_OUTER = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
_NOBODY = 65534


def main(arguments: Sequence[str]) -> int:
    """CONTROL_FD ISOLATION TMP_BYTES BACKGROUND PATH…: serve until the worker is gone."""
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    required, tmp_bytes, paths = arguments[1] == "required", int(arguments[2]), arguments[4:]
    background = arguments[3] == "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parts = _isolate(paths, tmp_bytes)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # cells that ended leave nothing behind
    problem = refused(parts) if required or "user" in parts else None
    messages.send(control, {"parts": parts, "problem": problem})
    if problem is not None:
        return 1
    gc.collect()
    gc.freeze()
    while True:
        try:
            messages.receive(control)
        except EOFError:
            return 0
        _make(control, parts, tmp_bytes, background)


def _isolate(paths: Sequence[str], tmp_bytes: int) -> cell.Parts:
    """Leave the host's network and files, and root's identity. Says what was refused instead of raising.

    A child tries it first, down to a whole cell: what half succeeds can't be taken back.
    """
    parts: cell.Parts = {"namespaces": True, "proc": True, "seccomp": True}
    if not seccomp.supported():
        parts["seccomp"] = "the system call filter knows x86_64 and aarch64 only"
    theirs, ours = messages.pair()
    with theirs, ours:
        pid = os.fork()
        if pid == 0:
            theirs.close()
            _try(paths, tmp_bytes, ours, parts)
        ours.close()
        try:
            message, _ = messages.receive(theirs)
        except EOFError:
            message = {"error": "the first cell ended without a word"}
    os.waitpid(pid, 0)
    if "error" in message:
        parts["namespaces"] = parts["proc"] = f"{message['error']}{_why()}"
        if os.geteuid() == 0:
            _leave_root()
        needed = (sys.executable, os.path.dirname(os.__file__))
        if not all(os.access(path, os.R_OK | os.X_OK) for path in needed):
            parts["user"] = f"user {_NOBODY} can't read {sys.executable}, which programs need"
        return parts
    parts |= message["ready"]  # whether a cell has a /proc, a cell knows
    _enter(paths)
    return parts


def _try(paths: Sequence[str], tmp_bytes: int, control: socket.socket, parts: cell.Parts) -> NoReturn:
    try:
        _enter(paths)
    except OSError as error:
        messages.send(control, {"error": error.strerror or str(error)})
        os._exit(1)
    cell.run(control, parts, tmp_bytes)


def _enter(paths: Sequence[str]) -> None:
    if _may_mount():
        kernel.unshare(_OUTER)
        rootfs.enter(paths)
    else:
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(_OUTER | kernel.CLONE_NEWUSER)
        cell.write("/proc/self/uid_map", f"{user} {user} 1")
        cell.write("/proc/self/setgroups", "deny")
        cell.write("/proc/self/gid_map", f"{group} {group} 1")
        rootfs.enter(paths)
    if os.geteuid() == 0:
        _leave_root()


def refused(parts: cell.Parts) -> str | None:
    """Why isolation isn't there, None if it is. Programs do without a /proc."""
    missing = [f"{name}: {value}" for name, value in parts.items() if value is not True and name != "proc"]
    return "; ".join(missing) or None


def _may_mount() -> bool:
    """Root of a machine or of a privileged container: CAP_SYS_ADMIN among the effective capabilities."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) & 1 << 21)


def _leave_root() -> None:
    try:
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return  # a rootless container: its root is an ordinary user outside, and there is no other one to become
        raise OSError(error.errno, f"leave root's identity: {error.strerror}") from None
    os.setgroups([])
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1, what="PR_SET_DUMPABLE")  # or /proc/self would still be root's


def _why() -> str:
    """What usually is behind a refusal, as far as this machine says."""
    for path, bad, advice in (
        ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces is 0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone is 0"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns is 1",
        ),
    ):
        try:
            with open(path) as file:
                if file.read().strip() == bad:
                    return f" ({advice})"
        except OSError:
            continue
    with open("/proc/self/status") as file:
        if any(line.split() == ["Seccomp:", "2"] for line in file):
            return " (a system call filter is on: does the container's profile allow unshare and mount?)"
    return ""


def _make(control: socket.socket, parts: cell.Parts, tmp_bytes: int, background: bool) -> None:
    theirs, ours = messages.pair()
    with theirs, ours:
        try:
            pid = os.fork()
        except OSError as error:
            messages.send(control, {"error": f"fork: {error.strerror}"})
            return
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            theirs.close()
            cell.run(ours, parts, tmp_bytes, background=background)
        try:
            handle = os.pidfd_open(pid)
        except OSError as error:
            messages.send(control, {"error": f"the cell ended right after its start: {error.strerror}"})
            return
        try:
            messages.send(control, {"cell": True}, [theirs.fileno(), handle])
        finally:
            os.close(handle)
