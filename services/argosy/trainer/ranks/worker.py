"""The command loop of a trainer's ranks 1, 2, …: read a command, do it, report, until rank 0 closes the pipe."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from argosy.trainer.ranks.faults import Fault
from argosy.trainer.ranks.framing import Frame, Incoming, Outgoing
from argosy.trainer.ranks.process import SHOW_STACK
from argosy.trainer.ranks.records import from_plain, to_plain

_PR_SET_PDEATHSIG = 1
_REPLY_TIMEOUT_S = 600.0
"""Rank 0 reads answers in a thread of its own, so a longer wait means that it hangs."""

MakeBackend = Callable[[Any, Any], Any]
"""(TrainerOptions, Rendezvous) → RankBackend."""


def end_with_parent(parent_pid: int) -> None:
    """SIGKILL when rank 0's process ends, however it ends (Linux; elsewhere the pipe's end must do)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)  # it died before we asked


def main(argv: list[str], make_backend: MakeBackend | None = None) -> int:
    """`argv`: file descriptor to read commands from, one to write answers to, process id of rank 0."""
    commands, answers, parent = Incoming(int(argv[0])), Outgoing(int(argv[1])), int(argv[2])
    end_with_parent(parent)
    faulthandler.register(SHOW_STACK, all_threads=False)  # even from within a collective that hangs
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides when a rank ends
    hello = commands.receive()
    if hello is None:
        return 0
    from argosy.telemetry.logs import setup_logging

    setup_logging(f"rank{hello.header['rank']}")
    loop = _Loop(hello, answers, make_backend)
    loop.report({"number": hello.header["number"]})  # imports are done: what comes now is in step with the others
    while (frame := commands.receive()) is not None:
        loop.do(frame)
    loop.close()
    return 0


class _Loop:
    def __init__(self, hello: Frame, answers: Outgoing, make_backend: MakeBackend | None) -> None:
        from argosy.trainer.options import TrainerOptions
        from argosy.trainer.ranks.backends import rank_backend_maker
        from argosy.trainer.ranks.rendezvous import Rendezvous

        self._rendezvous = from_plain(Rendezvous, hello.header["rendezvous"])
        self._options = from_plain(TrainerOptions, hello.header["options"])
        self._make_backend = make_backend or rank_backend_maker(self._options.backend)
        self._answers = answers
        self._backend: Any = None

    def do(self, frame: Frame) -> None:
        """One command. An error is reported, and rank 0 decides whether we go on."""
        number = frame.header["number"]
        try:
            if frame.header["command"] == "start":
                self._start()
                self.report({"number": number})
                return
            from argosy.trainer.ranks.commands import COMMANDS, batch_of

            command = COMMANDS[frame.header["command"]]
            answer = command(self._backend, frame.header["arguments"], batch_of(frame))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the other ranks must learn of it
            self.report({"number": number, "fault": to_plain(Fault.raised(self._rendezvous.rank, error))})
            return
        body = b"" if answer.batch is None else answer.batch.to_ipc()
        self.report({"number": number, "values": to_plain(answer.values)}, body)

    def report(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Tell rank 0."""
        self._answers.send(Frame(header, body), _REPLY_TIMEOUT_S)

    def close(self) -> None:
        """Leave the group in order."""
        if self._backend is not None:
            self._backend.close()

    def _start(self) -> None:
        import torch

        from argosy.modeling.determinism import use_repeatable_kernels
        from argosy.modeling.memory import keep_freed_memory

        keep_freed_memory()
        if self._options.deterministic:
            use_repeatable_kernels()
        if self._options.threads > 0:
            torch.set_num_threads(self._options.threads)
        self._backend = self._make_backend(self._options, self._rendezvous)
