"""A service's output on its way to the run folder: bounded in size, the last lines at hand (case H13)."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path

TAIL_LINES = 20
_KEPT_LINES = 200
"""A panic of a Go program comes with a stack that is longer than what is worth showing."""
_TAIL_LINE_BYTES = 2_000
_CHUNK_BYTES = 64 * 1024


class RotatingLog:
    """A file of at most `max_bytes`, with `backups` older ones beside it: x.log, x.log.1, x.log.2 …"""

    def __init__(self, path: Path, *, max_bytes: int = 10_000_000, backups: int = 3) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._backups = backups
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._size = self._file.tell()

    def write(self, data: bytes) -> None:
        """Append, rotating first if the file would grow over its bound."""
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        self._file.write(data)
        self._size += len(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._backups, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        self._file = self.path.open("wb", buffering=0)
        self._size = 0

    def _numbered(self, number: int) -> Path:
        return self.path if number == 0 else self.path.with_name(f"{self.path.name}.{number}")


class LogPump:
    """Copies one child's output to its log, in a thread: a busy event loop must never stop a child at a full pipe."""

    def __init__(self, read_fd: int, log: RotatingLog) -> None:
        self._fd = read_fd
        self._log = log
        self._lines: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._rest = b""
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name=f"log {log.path.name}", daemon=True)
        log.write(f"---- {time.strftime('%Y-%m-%d %H:%M:%S')} started\n".encode())
        self._thread.start()

    def tail(self, count: int = TAIL_LINES) -> list[str]:
        """The last lines of this process's output: `count` of the 200 that are kept."""
        lines = [*self._lines, self._rest] if self._rest else list(self._lines)
        shown = [line.decode(errors="replace").rstrip() for line in lines[-count:]]
        if self._failure is not None:
            shown.append(f"(the log could not be written: {self._failure})")
        return shown

    def join(self, timeout_s: float) -> None:
        """Wait until everything is copied. A grandchild that still holds the pipe costs the whole timeout."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while chunk := os.read(self._fd, _CHUNK_BYTES):
            *lines, rest = (self._rest + chunk).split(b"\n")
            self._lines.extend(line[:_TAIL_LINE_BYTES] for line in lines)
            self._rest = rest[-_TAIL_LINE_BYTES:]
            try:
                self._log.write(chunk)
                self._failure = None
            except OSError as error:  # disk full: the child must go on, and the tail stays readable
                self._failure = error
        os.close(self._fd)
        self._log.close()
