"""A question that may never end, put to a forked child that the kernel kills at its processor-time limit.

For workers only: they have one thread, and a fork of a process with loaded libraries takes about ten milliseconds. What
hangs inside one call of C code ends here too, which no Python signal handler can do, and no worker has to be replaced
(case A11). The limit is processor time, so that a busy machine doesn't turn right answers into wrong ones.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable

_WALL_FACTOR = 15
"""The child is given up when it has had this many times its processor time on the clock."""
_MOST_BYTES = 4000
_YES, _NO, _MEMORY, _ERROR = b"y", b"n", b"m", b"e"


class OverrunError(Exception):
    """The question took too much processor time or memory."""


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
        """The question's answer. Raises OverrunError, or RuntimeError with the child's traceback."""
        if self._left_s <= 0:
            raise OverrunError("the sample's budget is used up")
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            _answer(question, write_fd, self._left_s)
        os.close(write_fd)
        try:
            reply = _read(read_fd, self._left_s * _WALL_FACTOR)
        finally:
            os.close(read_fd)
            if not _has_ended(pid):
                os.kill(pid, signal.SIGKILL)
            _, _, usage = os.wait4(pid, 0)
            self._left_s -= usage.ru_utime + usage.ru_stime
        if reply in (_YES, _NO):
            return reply == _YES
        if reply.startswith(_ERROR):
            raise RuntimeError(reply[1:].decode(errors="replace"))
        self._left_s = 0.0
        raise OverrunError("it ran out of memory" if reply == _MEMORY else "it ran out of processor time")


def _answer(question: Callable[[], bool], write_fd: int, limit_s: float) -> None:
    """The child's whole life; it doesn't come back."""
    try:
        gc.disable()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # its default is to end the process, whatever it is doing
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        try:
            reply = _YES if question() else _NO
        except (MemoryError, RecursionError):
            reply = _MEMORY
        except BaseException:  # noqa: BLE001 -- it goes to the parent, which raises it
            reply = _ERROR + traceback.format_exc()[-_MOST_BYTES:].encode()
        os.write(write_fd, reply)
    finally:
        sys.stderr.flush()
        os._exit(0)


def _read(fd: int, seconds: float) -> bytes:
    """All that comes until the other side closes, or nothing if that takes too long."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(seconds * 1000):
        return b""
    return os.read(fd, _MOST_BYTES + 1)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
