"""One worker process as its owner sees it: start, exchange one message within a deadline, kill.

Used by one thread at a time, the one that started it: a worker dies with the thread that it was started by. The process
is started by fork and exec in one step (never a bare fork), which is safe when gRPC runs in this process (case F2).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from typing import Any

from argosy.reward.messages import MOST_REPLY_BYTES, decode, encode

_log = logging.getLogger(__name__)
_READ_BYTES = 65536
_MOST_DYING_S = 10.0


class WorkerTimeoutError(Exception):
    """It didn't answer in time."""


class WorkerCrashedError(Exception):
    """It ended, or spoke nonsense. The message says how."""


class WorkerStartError(Exception):
    """It says itself that it can't start: the custom function can't be loaded."""


class WorkerProcess:
    """A running worker. Whoever makes one must `kill` it."""

    def __init__(self, settings: Mapping[str, Any], *, start_timeout_s: float) -> None:
        """Start the process without waiting until it is ready.

        Raises OSError if the system can't, WorkerCrashedError or WorkerTimeoutError if the process ends right away.
        """
        self._start_timeout_s = start_timeout_s
        self._ready = False
        self.traits: Mapping[str, Any] = {}
        """What it says about its function, once it is ready."""
        self._group_ended = False
        self._buffer = b""
        request_read, self._request_fd = os.pipe()
        self._reply_fd, reply_write = os.pipe()
        try:
            self._process = subprocess.Popen(
                # -P: the working folder must not shadow modules; PYTHONPATH says where ours came from.
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "argosy.reward.worker",
                    str(request_read),
                    str(reply_write),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(request_read, reply_write),
                # So that its children can be killed with it, and Ctrl-C is ours alone. No session of its own: where the
                # kernel schedules by sessions, what the slow lane has at the lowest priority must be in that of the
                # others' to give way to them at once.
                process_group=0,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_paths())},
            )
        except BaseException:
            os.close(self._request_fd)
            os.close(self._reply_fd)
            raise
        finally:
            os.close(request_read)
            os.close(reply_write)
        os.set_blocking(self._request_fd, False)
        self._can_write, self._can_read = select.poll(), select.poll()
        self._can_write.register(self._request_fd, select.POLLOUT)
        self._can_read.register(self._reply_fd, select.POLLIN)
        try:
            # At once, so that it loads what it needs while nobody waits for it.
            self._write(encode(settings), time.monotonic() + start_timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        if self._process.poll() is None:
            return True
        self._end_group()
        return False

    def wait_ready(self) -> None:
        """Wait until it can score. Raises WorkerStartError, WorkerTimeoutError or WorkerCrashedError."""
        if self._ready:
            return
        reply = self._read(time.monotonic() + self._start_timeout_s)
        if "error" in reply:
            raise WorkerStartError(str(reply["error"]))
        if reply.get("ready") is not True:
            raise WorkerCrashedError(f"its first message was {str(reply)[:200]}")
        self.traits = reply.get("traits", {})
        self._ready = True

    def exchange(self, message: bytes, *, timeout_s: float) -> dict[str, Any]:
        """Send an encoded request and wait for the reply; a slow import in between has its own, longer allowance."""
        end = time.monotonic() + timeout_s
        self._write(message, end)
        reply = self._read(end)
        while "loading" in reply:
            end = time.monotonic() + (self._start_timeout_s if reply["loading"] else timeout_s)
            reply = self._read(end)
        return reply

    def kill(self) -> None:
        """End it and its process group at once, and reap it. May be called again, and from another thread.

        If the kernel doesn't let go of it within `_MOST_DYING_S` seconds it is left behind, with a warning.
        """
        self._end_group()
        self._process.kill()
        try:
            self._process.wait(timeout=_MOST_DYING_S)
        except subprocess.TimeoutExpired:
            # Stuck in the kernel, on a disk that doesn't answer for one: it ends when that ends; nobody waits for it.
            _log.warning("worker process %d is still there %g s after it was killed", self.pid, _MOST_DYING_S)

    def close(self) -> None:
        """Kill it and give back the pipes. Only for the thread that exchanges."""
        self.kill()
        for fd in (self._request_fd, self._reply_fd):
            with contextlib.suppress(OSError):
                os.close(fd)

    def _end_group(self) -> None:
        """Once only: later the group's number may be another's."""
        if not self._group_ended:
            self._group_ended = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _write(self, data: bytes, end: float) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._request_fd, view) :]
            except BlockingIOError:
                _wait(self._can_write, end)
            except BrokenPipeError:
                raise WorkerCrashedError(self._how_it_ended()) from None

    def _read(self, end: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            _wait(self._can_read, end)
            piece = os.read(self._reply_fd, _READ_BYTES)
            if not piece:
                raise WorkerCrashedError(self._how_it_ended())
            self._buffer += piece
            if len(self._buffer) > MOST_REPLY_BYTES:
                raise WorkerCrashedError(f"its reply is longer than {MOST_REPLY_BYTES} bytes")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return decode(line)
        except ValueError as error:
            raise WorkerCrashedError(f"its reply is no message: {error}") from error

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "closed its pipes"
        self._end_group()
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"


def _wait(poll: select.poll, end: float) -> None:
    left = end - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000):
        raise WorkerTimeoutError


def _import_paths() -> list[str]:
    """Our import path without the standard library, which another Python that a scorer starts couldn't use."""
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    paths = [path or os.getcwd() for path in sys.path]
    return [path for path in paths if path not in standard and not path.endswith((".zip", "lib-dynload"))]
