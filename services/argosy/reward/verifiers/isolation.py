"""A question that may never end, put to a forked child that the kernel kills at its processor-time limit.

For workers only: they have one thread, and a fork of a process with loaded libraries takes about ten milliseconds. What
hangs inside one call of C code ends here too, which no Python signal handler can do, and no worker has to be replaced
(case A11). The limit is processor time, so that a busy machine doesn't turn right answers into wrong ones.

What a child costs is the cost of the expression that it evaluates, and of nothing else: it alone may make an answer
"costly". Whatever else ends a child (the kernel for want of memory, a crash, the clock of a machine that stands still)
says nothing about the answer.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from argosy.reward.verifiers.budget import BUDGET, PutAsideError
from argosy.sandbox.background import give_way

_WALL_FACTOR = 15
"""The child is given up when it has had this many times its processor time on the clock."""
_MOST_BYTES = 4000
_LEAST_ROOM_BYTES = 256 * 1024**2
"""A child that runs out of memory with less than this to itself ran out of ours."""
_LEAST_QUOTA_S = 0.02
"""A fork and an ordinary question take this long: with less there is no use in asking."""
_MEMORY, _ERROR = b"m", b"e"


class OverrunError(Exception):
    """The question itself took too much processor time or memory."""


class Isolation:
    """Asks in children, within a budget of processor seconds that `renew` fills up."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._left_s = limit_s
        gc.freeze()  # so that no collection in a child copies the memory that it shares with us

    def renew(self) -> None:
        """A new sample: the whole limit again."""
        self._left_s = self._limit_s

    def ask(self, question: Callable[[], bool]) -> bool:
        """The question's answer; raises as `measure` does."""
        return bool(self.measure(question))

    def measure(self, question: Callable[[], float]) -> float:
        """The number that the question gives.

        Raises OverrunError if the question costs too much, MemoryError if this process had no room for it,
        PutAsideError if it costs more than the sample's quota, and RuntimeError if the child ended in any other way,
        with its traceback if it has one.
        """
        if self._left_s <= 0:
            raise OverrunError("the sample's budget is used up")
        left_s, quota_s = self._left_s, BUDGET.left_s
        if quota_s < _LEAST_QUOTA_S:
            raise PutAsideError
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            _answer(question, write_fd, min(left_s, quota_s))
        os.close(write_fd)
        # In the background it may have to wait for as long as others want the processor: only the sample's end counts.
        seconds = BUDGET.end - time.monotonic() if BUDGET.background else left_s * _WALL_FACTOR
        try:
            reply = _read(read_fd, seconds)
        finally:
            os.close(read_fd)
            if not _has_ended(pid):
                os.kill(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            self._left_s -= usage.ru_utime + usage.ru_stime
            BUDGET.spend(usage.ru_utime + usage.ru_stime)
        if reply is None:
            raise RuntimeError(f"the machine gave a child too little of a processor in {seconds:.3g} s")
        if reply.startswith(_ERROR):
            raise RuntimeError(reply[1:].decode(errors="replace"))
        if reply and reply != _MEMORY:
            return float(reply)
        if not reply and not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF):
            raise RuntimeError(f"a child ended with wait status {status}")
        if not reply and quota_s < left_s:
            raise PutAsideError
        self._left_s = 0.0
        if reply and _room_bytes() < _LEAST_ROOM_BYTES:
            raise MemoryError("the worker itself had no room left")
        raise OverrunError("it ran out of memory" if reply else "it ran out of processor time")


def _answer(question: Callable[[], float], write_fd: int, limit_s: float) -> None:
    """The child's whole life; it doesn't come back."""
    try:
        gc.disable()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # its default is to end the process, whatever it is doing
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        try:
            if BUDGET.background:
                give_way()
            reply = repr(float(question())).encode()
        except (MemoryError, RecursionError):
            reply = _MEMORY
        except BaseException:  # noqa: BLE001 -- it goes to the parent, which raises it
            reply = _ERROR + traceback.format_exc()[-_MOST_BYTES // 4 :].encode()
        os.write(write_fd, reply)
    finally:
        sys.stderr.flush()
        os._exit(0)


def _read(fd: int, seconds: float) -> bytes | None:
    """What the child says, empty if it ends without a word; None if that takes too long."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return os.read(fd, _MOST_BYTES + 1) if poll.poll(seconds * 1000) else None


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _room_bytes() -> float:
    """How much more heap this process may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit == resource.RLIM_INFINITY:
        return float("inf")
    statm = Path("/proc/self/statm")
    used = int(statm.read_text().split()[5]) * resource.getpagesize() if statm.exists() else 0
    return limit - used
