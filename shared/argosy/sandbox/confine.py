"""The last steps before untrusted code: descriptors, limits, capabilities, system call filter. All or nothing."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from argosy.sandbox import kernel, seccomp

_OPEN_FILES = 256
_ABOVE_ALL = 200
"""No descriptor of a cell has a number as high as this."""
_STACK_BYTES = 64 * 1024**2
_OWN_BYTES = 192 * 1024**2
"""Address space of an interpreter before it has done anything, libraries included."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of each process; the cell's owner watches the sum (see `watch`)."""

    cpu_s: float
    memory_bytes: int
    tmp_bytes: int
    process_count: int
    bound_address_space: bool = True
    """False for runtimes that reserve address space that they never use (Node)."""
    children_signals: bool = False
    """True for runtimes that hear of their children by SIGCHLD (Node, bash)."""
    own_session: bool = True
    """False in a cell that is a session already (see `background`)."""


def confine(limits: Limits, descriptors: tuple[int, ...], environment: Mapping[str, str]) -> None:
    """Make this process the program's: `descriptors` become 0, 1, 2, …, every other one is closed.

    Raises OSError if any step is refused: then the program must not run.
    """
    if limits.own_session:
        os.setsid()
    moved = [os.dup2(fd, _ABOVE_ALL + index) for index, fd in enumerate(descriptors)]
    for index, fd in enumerate(moved):
        os.dup2(fd, index, inheritable=True)
    os.closerange(len(descriptors), 1 << 20)
    os.environ.clear()
    os.environ.update(environment)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    _limit(limits)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, what="PR_SET_NO_NEW_PRIVS")
    seccomp.install(children_signals=limits.children_signals)


def _limit(limits: Limits) -> None:
    seconds = int(limits.cpu_s) + 1
    wanted = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_DATA: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.tmp_bytes,
        resource.RLIMIT_NPROC: limits.process_count + 2,  # pid 1 counts too, and the process outside
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_STACK: _STACK_BYTES,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 256,
    }
    if limits.bound_address_space:
        wanted[resource.RLIMIT_AS] = limits.memory_bytes + _OWN_BYTES
    for kind, value in wanted.items():
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
