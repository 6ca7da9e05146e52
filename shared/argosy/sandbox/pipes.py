"""Pipes to and from a program, read and written together so that neither side ever waits for the other (case G4)."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

_READ_BYTES = 1 << 16


class Pipes:
    """Our ends of some pipes. `theirs` are the other ends, in the order of creation, until `release`."""

    def __init__(self) -> None:
        self.theirs: list[int] = []
        self._poll = select.poll()
        self._readers: dict[int, Callable[[bytes], None]] = {}
        self._writers: dict[int, memoryview] = {}
        self._last: set[int] = set()
        self._others: dict[int, Callable[[], None]] = {}

    @property
    def reading(self) -> bool:
        """Whether anybody could still write to us."""
        return bool(self._readers)

    def to_program(self) -> int:
        """A new pipe for `write`."""
        read, write = _pipe()
        self.theirs.append(read)
        os.set_blocking(write, False)
        self._writers[write] = memoryview(b"")
        return write

    def from_program(self, on_data: Callable[[bytes], None]) -> None:
        """A new pipe whose bytes go to `on_data`."""
        read, write = _pipe()
        self.theirs.append(write)
        os.set_blocking(read, False)
        self._readers[read] = on_data
        self._poll.register(read, select.POLLIN)

    def also(self, fd: int, on_readable: Callable[[], None]) -> None:
        """Look at another descriptor too, until `forget`."""
        self._others[fd] = on_readable
        self._poll.register(fd, select.POLLIN)

    def forget(self, fd: int) -> None:
        """Don't look at it any more."""
        if self._others.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def release(self) -> None:
        """Close the program's ends: it has its own copies now."""
        while self.theirs:
            os.close(self.theirs.pop())

    def write(self, fd: int, data: bytes, *, last: bool = False) -> None:
        """Have `data` written as the program reads it, then, if it is the last, the end of file."""
        if fd not in self._writers:
            return  # the program has closed its end
        if last:
            self._last.add(fd)
        if not self._writers[fd]:
            self._poll.register(fd, select.POLLOUT)
        self._writers[fd] = memoryview(bytes(self._writers[fd]) + data)
        if not self._writers[fd]:
            self._send(fd)

    def serve(self, timeout_s: float) -> None:
        """Wait for something to happen, and do what can be done."""
        for fd, _ in self._poll.poll(timeout_s * 1000):
            if fd in self._writers:
                self._send(fd)
            elif fd in self._readers:
                self._receive(fd)
            elif fd in self._others:
                self._others[fd]()

    def close(self) -> None:
        """Close all of them."""
        self.release()
        for fd in (*self._readers, *self._writers):
            os.close(fd)
        self._readers, self._writers = {}, {}

    def _send(self, fd: int) -> None:
        rest = self._writers[fd]
        try:
            rest = rest[os.write(fd, rest) :] if rest else rest
        except BlockingIOError:
            return
        except BrokenPipeError:  # it doesn't want to read more
            rest = memoryview(b"")
            self._last.add(fd)
        self._writers[fd] = rest
        if not rest:
            self._poll.unregister(fd)
            if fd in self._last:
                del self._writers[fd]
                os.close(fd)

    def _receive(self, fd: int) -> None:
        try:
            piece = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if piece:
            self._readers[fd](piece)
        else:
            self._poll.unregister(fd)
            del self._readers[fd]
            os.close(fd)


def _pipe() -> tuple[int, int]:
    """One that programs can open again by name (`/dev/stdin`), though a service that is root made it and they are not.

    Nobody else can: who may look into a process's /proc/PID/fd needs to be allowed to trace it.
    """
    read, write = os.pipe()
    os.fchmod(read, 0o666)  # of both ends
    return read, write
