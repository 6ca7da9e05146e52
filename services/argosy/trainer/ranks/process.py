"""One rank's process as rank 0 sees it: its pipes, its output, its end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Mapping, Sequence

from argosy.trainer.ranks.faults import Fault
from argosy.trainer.ranks.framing import Frame, FrameReader, Outgoing

_READ_BYTES = 1 << 20
_TAIL_LINES = 50
_STACK_S = 0.5
_STACK_LINES = 8
SHOW_STACK = signal.SIGUSR1
"""At which a rank prints where it is (faulthandler)."""
_EXIT_S = 1.0
"""Between a process's closing of its pipes and its end."""


class RankProcess:
    """A running rank. Start it from a thread that lives as long as it should: the kernel kills it with that thread."""

    def __init__(self, rank: int, program: Sequence[str], environment: Mapping[str, str]) -> None:
        self.rank = rank
        command_read, command_write = os.pipe()
        self.answers_fd, answer_write = os.pipe()
        self.output_fd, output_write = os.pipe()
        try:
            self._process = subprocess.Popen(
                # -P: the working folder must not shadow modules; PYTHONPATH says where ours came from.
                [sys.executable, "-P", *program, str(command_read), str(answer_write), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                pass_fds=(command_read, answer_write),
                env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(_import_paths())},
            )
        except BaseException:
            for fd in (command_write, self.answers_fd, self.output_fd):
                os.close(fd)
            raise
        finally:
            for fd in (command_read, answer_write, output_write):
                os.close(fd)
        for fd in (self.answers_fd, self.output_fd):
            os.set_blocking(fd, False)
        self._commands = Outgoing(command_write)
        self._hung_up = False
        self._answers = FrameReader()
        self._line = b""
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, frame: Frame, timeout_s: float) -> None:
        """Give it a command. One that is gone is noticed by the end of its answers."""
        with contextlib.suppress(BrokenPipeError):
            self._commands.send(frame, timeout_s)

    def hang_up(self) -> None:
        """No more commands: it ends in order."""
        if not self._hung_up:
            self._hung_up = True
            self._commands.close()

    def read_answers(self) -> list[Frame] | None:
        """The frames that have arrived; None when it has closed its end."""
        piece = _read(self.answers_fd)
        return None if piece == b"" else self._answers.feed(piece or b"")

    def read_output(self) -> bool:
        """Pass on what it has printed, each line with the rank before it. False when it has closed its end."""
        piece = _read(self.output_fd)
        *lines, self._line = (self._line + (piece or b"")).split(b"\n")
        if piece == b"" and self._line:
            lines, self._line = [self._line], b""
        for line in lines:
            text = line.decode(errors="replace")
            self._tail.append(text)
            with contextlib.suppress(OSError, ValueError):  # our own output may be closed already
                print(f"[rank {self.rank}] {text}", file=sys.stderr, flush=True)
        return piece != b""

    def whereabouts(self) -> str:
        """Ask a rank that hangs, and is to be killed, where it is: its innermost calls. Takes half a second at most."""
        self._tail.clear()
        self._process.send_signal(SHOW_STACK)
        end = time.monotonic() + _STACK_S
        while (left := end - time.monotonic()) > 0 and _is_readable(self.output_fd, left) and self.read_output():
            pass
        calls = [line for line in self._tail if line.startswith("  File ")]
        if not calls:
            return f"rank {self.rank} doesn't say where it is: it is stopped, or gets no processor"
        return f"rank {self.rank} is at (innermost first)\n" + "\n".join(calls[:_STACK_LINES])

    def fault(self) -> Fault:
        """How it ended, once it has closed its pipes."""
        try:
            code = self._process.wait(timeout=_EXIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        while self.read_output() and _is_readable(self.output_fd):
            pass
        return Fault.ended(self.rank, self.pid, code, list(self._tail))

    def wait(self, timeout_s: float) -> None:
        """Wait for its end, and kill it after that time."""
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        """SIGKILL, at once."""
        self._process.kill()

    def close(self) -> None:
        """Give back the pipes of a process that has ended."""
        self.hang_up()
        for fd in (self.answers_fd, self.output_fd):
            os.close(fd)


def _read(fd: int) -> bytes | None:
    """What is there; b"" at the end, None if nothing has come."""
    try:
        return os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return None


def _is_readable(fd: int, within_s: float = 0.0) -> bool:
    return bool(select.select([fd], [], [], within_s)[0])


def _import_paths() -> list[str]:
    """Our import path without the standard library's folders."""
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    paths = [path or os.getcwd() for path in sys.path]
    return [path for path in paths if path not in standard and not path.endswith((".zip", "lib-dynload"))]
