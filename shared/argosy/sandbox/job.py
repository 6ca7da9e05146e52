"""One program in its cell, as the worker sees it: bytes in, bytes out, within limits. Nothing of it is trusted."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

from argosy.sandbox import messages
from argosy.sandbox.cell import Parts
from argosy.sandbox.group import Group
from argosy.sandbox.options import SandboxBusyError, SandboxError, SandboxOptions
from argosy.sandbox.pipes import Pipes
from argosy.sandbox.watch import Usage, Watch

_ERROR_TAIL_BYTES = 4096
_LOOK_S = 0.02
_END_S = 20.0


@dataclass(frozen=True, slots=True)
class Program:
    """What to run: Python `code`, or a command. `{folder}` in `argv` is the program's own folder."""

    code: str = ""
    function: str | None = None
    """The function of call-based tests; None runs the code as a program."""
    argv: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    """Name → content in base64, put into the folder first."""
    output_file: str | None = None
    """A file to bring back."""
    cpu_s: float | None = None
    bound_address_space: bool = True
    children_signals: bool = False
    """It may say what happens on SIGCHLD, and so hide its children's processor time (see `watch`)."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended."""

    how: str
    """"exited", or what ended it: "timeout", "memory", "output"."""
    status: int = 0
    """Exit code, or the negative number of a signal; 0 if `how` isn't "exited"."""


class Cell:
    """A cell's handles."""

    def __init__(self, control: socket.socket, outermost: int) -> None:
        self.control = control
        self._outermost = outermost
        self._first: int | None = None
        self.proc: int | None = None
        self.first_pid = 0
        self.group: Group | None = None
        """Its control group, where there are any."""

    def wait_ready(self, deadline: float) -> Parts:
        """Wait until it can take a job. Raises OSError with its own message, or TimeoutError."""
        self.control.settimeout(max(0.01, deadline - time.monotonic()))
        message, descriptors = messages.receive(self.control)
        if "error" in message:
            raise OSError(message["error"])
        self._first, *rest = descriptors
        self.proc = rest[0] if rest else None
        with open(f"/proc/self/fdinfo/{self._first}") as file:
            self.first_pid = next(int(line.split()[1]) for line in file if line.startswith("Pid:"))
        return dict(message["ready"])

    def kill(self) -> None:
        """Kill pid 1, and with it everything in the cell; without namespaces, everything in the control group."""
        if self._first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
        if self.group is not None:
            self.group.kill()

    def end(self) -> None:
        """Kill everything in it, and wait until nothing is left. Raises SandboxError if something stays."""
        self.control.close()
        self.kill()
        poll = select.poll()
        poll.register(self._outermost, select.POLLIN)
        gone = bool(poll.poll(_END_S * 1000))
        for fd in (self._first, self._outermost, self.proc):
            if fd is not None:
                os.close(fd)
        self._first = self.proc = None
        if self.group is not None:
            self.group.remove()
        if not gone:
            raise SandboxError(f"a program was killed and still is there after {_END_S:g} s")


class Job:
    """A running program."""

    def __init__(
        self,
        cell: Cell,
        program: Program,
        spec: bytes,
        options: SandboxOptions,
        deadline: float,
        folder: contextlib.ExitStack,
    ) -> None:
        self._cell, self._options, self._deadline, self._folder = cell, options, deadline, folder
        self.ended: Ended | None = None
        self.stdout, self.errors, self.claims = bytearray(), bytearray(), bytearray()
        """What came so far: standard output, the end of standard error, the call-based tests' claims."""
        self.used_s = 0.0
        """Seconds that count against the limits."""
        self.output: bytes | None = None
        self._started = self._closed = False
        self._cpu_s = 0.0
        self._watch = Watch(cell.first_pid, cell.proc, cell.group, children_signals=program.children_signals)
        self._pipes = Pipes()
        self._spec = os.memfd_create("job", os.MFD_CLOEXEC)
        try:
            with open(self._spec, "wb", closefd=False) as file:
                file.write(spec)
            os.lseek(self._spec, 0, os.SEEK_SET)
            self._stdin = self._pipes.to_program()
            self._pipes.from_program(lambda data: self._collect(self.stdout, data))
            self._pipes.from_program(self._collect_errors)
            self._requests = -1
            if program.function is not None:
                self._requests = self._pipes.to_program()
                self._pipes.from_program(lambda data: self._collect(self.claims, data))
            messages.send(cell.control, {}, [self._spec, *self._pipes.theirs])
            self._pipes.release()
        except BaseException:
            self._pipes.close()
            os.close(self._spec)
            raise
        self._pipes.also(cell.control.fileno(), self._hear)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def over(self) -> bool:
        """Whether it ended and all its output is here."""
        return self.ended is not None and not self._pipes.reading

    def feed(self, data: bytes) -> None:
        """Standard input, all of it."""
        self._pipes.write(self._stdin, data, last=True)

    def request(self, data: bytes) -> None:
        """Bytes for the harness of call-based tests."""
        self._pipes.write(self._requests, data)

    def look(self) -> None:
        """Read what is there now, without waiting."""
        self._pipes.serve(0)

    def pump(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Read and write until `done()` or the program is over or has used `limit_s`; whether it was `done`.

        Raises SandboxBusyError at the deadline, SandboxError if the cell breaks.
        """
        start = looked = time.monotonic()
        cpu_s, spent, idle_s = self._watch.usage().cpu_s, 0.0, 0.0
        try:
            while not done():
                if self.over:
                    return False
                self._pipes.serve(_LOOK_S)
                now = time.monotonic()
                if now >= self._deadline:
                    used = f"{spent:.2f} s of its {limit_s:.2f} s in {now - start:.2f} s"
                    raise SandboxBusyError(f"the machine is too busy: a program could use {used}")
                if now - looked < _LOOK_S or self.ended is not None:
                    continue
                usage, interval_s, looked = self._watch.usage(), now - looked, now
                if self._started and usage.running:  # else it is our own code that takes the time
                    if self._options.background:
                        idle_s += 0.0 if usage.runnable else interval_s
                        spent = usage.cpu_s - cpu_s + idle_s
                    else:
                        spent = max(spent + max(0.0, interval_s - usage.waited_s), usage.cpu_s - cpu_s)
                    self._check(usage, spent >= limit_s)
            return True
        finally:
            self.used_s += min(max(spent, self._cpu_s), limit_s)  # what ended before a look told its own

    def _check(self, usage: Usage, too_long: bool) -> None:
        most_bytes = self._options.memory_bytes
        too_large = usage.memory_bytes > most_bytes and self._watch.memory_bytes() > most_bytes
        if not (too_long or too_large or self._starved()):
            return
        self._pipes.serve(0)  # it may have ended before we looked
        if self.ended is None:
            self._stop("timeout" if too_long else "memory")

    def _starved(self) -> bool:
        """Whether the kernel had to end one of its processes: the sum of their memory grew too fast to be seen."""
        return self._cell.group is not None and self._cell.group.out_of_memory()

    def close(self) -> None:
        """Kill what is left of it. May be called again. Raises SandboxError if something can't be killed."""
        if self._closed:
            return
        self._closed = True
        self._pipes.close()
        os.close(self._spec)
        try:
            self._cell.end()
        finally:
            self._folder.close()

    def _hear(self) -> None:
        """What pid 1 of the cell says."""
        control = self._cell.control
        try:
            message, _ = messages.receive(control)
        except EOFError:
            self._pipes.forget(control.fileno())
            if self.ended is None and self._starved():
                self.ended = Ended("memory")
            elif self.ended is None:
                raise SandboxError("the cell ended without a word; was the machine out of memory?") from None
            return
        if "error" in message:
            raise SandboxError(f"the program wasn't started: {message['error']}")
        self._started = True
        if "status" in message:
            self._pipes.forget(control.fileno())
            how = Ended("memory") if self._starved() else Ended("exited", int(message["status"]))
            self.ended = self.ended or how
            self._cpu_s = float(message["cpu_s"])
            if message.get("output") is not None:
                self.output = os.pread(self._spec, int(message["output"]), 0)

    def _collect(self, sink: bytearray, data: bytes) -> None:
        sink += data
        if len(sink) > self._options.output_bytes:
            del sink[self._options.output_bytes :]
            self._stop("output")

    def _collect_errors(self, data: bytes) -> None:
        self.errors += data
        del self.errors[:-_ERROR_TAIL_BYTES]

    def _stop(self, how: str) -> None:
        """Kill the program; what it has written so far can still be read."""
        self.ended = self.ended or Ended(how)
        self._cell.kill()
