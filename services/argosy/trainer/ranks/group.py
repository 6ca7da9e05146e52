"""Starts the ranks of one trainer, sends them commands, and ends all of them when one fails (case E12).

A rank that raises or dies leaves the others waiting in a collective, whose own timeout is minutes. So a thread watches
all ranks while a command runs. The first fault starts a short wait, in which every rank may report:

- the same error from every rank: they are still in step, and the caller gets it as an ordinary error;
- anything else: all other ranks are killed, which also breaks the collective that rank 0 may be waiting in, and the
  caller and the log get the first fault, with the rank's number and the end of its traceback. The group is of no use
  from then on (`failure`), and its process should end.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from argosy.trainer.ranks.commands import Answer, batch_of, command_frame
from argosy.trainer.ranks.faults import Fault, first_cause
from argosy.trainer.ranks.framing import Frame
from argosy.trainer.ranks.process import RankProcess
from argosy.trainer.ranks.records import from_plain
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import ArgosyError, DeadlineError, InternalError, UnavailableError

_LOG = logging.getLogger(__name__)
R = TypeVar("R")

SETTLE_S = 1.0
"""From the first fault until it is decided which one was the cause."""
REFUSAL_S = 5.0
"""The same where it is an error of ours: such are alike on all ranks, but a busy machine's ranks aren't alike fast."""
END_WITHIN_S = 6.5
"""From the first fault until all other ranks have ended and the caller has its error."""
_ABORT_AFTER_S = 2.0
"""After that, collectives that rank 0 still waits in are aborted (NCCL doesn't notice a peer's end by itself)."""
_CLOSE_S = 5.0
PROGRAM = ("-m", "argosy.trainer.ranks")


class RankGroup:
    """Ranks 1, 2, … of a trainer whose rank 0 is this process. Commands come from one thread at a time.

    Args:
        world_size: Ranks in all, ≥ 2.
        timeout_s: Of one collective; a rank that has nothing to report so long after rank 0 is done is a failure.
        program: Arguments to Python that start a rank.
        environment: Added to theirs.
    """

    def __init__(
        self,
        world_size: int,
        *,
        timeout_s: float,
        program: Sequence[str] = PROGRAM,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.world_size = world_size
        self.failure: Future[ArgosyError] = Future()
        """Gets the first cause as its *result* when the group can't go on."""
        self._timeout_s = timeout_s
        self._program = program
        self._environment = dict(environment or {})
        self._changed = threading.Condition()
        self._number = 0
        self._doing = "start-up"
        self._answers: dict[int, Answer] = {}
        self._faults: list[Fault] = []
        self._closing = False
        self._wake_read, self._wake_write = os.pipe()
        self._ranks: list[RankProcess] = []
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._watch, args=(started,), name="trainer-ranks", daemon=True)
        self._thread.start()
        started.result()

    @property
    def pids(self) -> list[int]:
        """Process ids of ranks 1, 2, …"""
        return [rank.pid for rank in self._ranks]

    def call(
        self,
        command: str,
        arguments: Mapping[str, Any],
        batch: TrajectoryBatch | None,
        local: Callable[[], R],
        *,
        hello: Sequence[Mapping[str, Any]] = (),
        patience_s: float | None = None,
    ) -> tuple[R, list[Answer]]:
        """Let all ranks do a command, rank 0 by `local`; returns its result and the answers of ranks 1, 2, …

        Args:
            command: A key of `COMMANDS`.
            arguments: Plain values and records.
            batch: Goes to every rank.
            local: What rank 0 does meanwhile, in this thread.
            hello: Instead of a command, the first message to each rank.
            patience_s: How long the others may take after rank 0; None: as long as a collective.

        Raises the error that every rank raised alike; or the first fault (also of later calls: UnavailableError).
        """
        if self.failure.done():
            raise UnavailableError(f"the trainer's ranks have ended: {self.failure.result().message}")
        with self._changed:
            self._number += 1
            self._doing = command
            self._answers = {}
        frame = command_frame(self._number, command, arguments, batch)
        result: R | None = None
        error: BaseException | None = None
        try:
            for place, rank in enumerate(self._ranks):
                own = Frame({**hello[place], "number": self._number}) if hello else frame
                rank.send(own, self._timeout_s)
            result = local()
        except BaseException as raised:  # noqa: BLE001 - the others must learn of it, whatever it is
            error = raised
        self._settle(error, self._timeout_s if patience_s is None else patience_s)
        if error is not None:
            raise error
        answers = [self._answers[rank.rank] for rank in self._ranks]
        return result, answers  # type: ignore[return-value]  # local has returned, so it is an R

    def close(self) -> None:
        """Let the ranks end in order; kill those that don't. Repeating it does no harm."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
        end = time.monotonic() + _CLOSE_S
        for rank in self._ranks:
            rank.hang_up()
        for rank in self._ranks:
            rank.wait(max(0.0, end - time.monotonic()))
        self._wake()
        self._thread.join()
        for rank in self._ranks:
            rank.close()
        with self._changed:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_write = -1

    # Rank 0's thread

    def _settle(self, error: BaseException | None, patience_s: float) -> None:
        """Wait until every rank has reported. Returns if all are still in step."""
        with self._changed:
            if error is None:
                self._answers[0] = Answer()
            else:
                self._faults.append(Fault.raised(0, error))
                self._wake()
            end = time.monotonic() + patience_s
            while not self.failure.done() and self._silent():
                if not self._changed.wait(max(0.0, end - time.monotonic())) and time.monotonic() >= end:
                    late = DeadlineError(f"no answer within {patience_s:g} s of rank 0's")
                    self._faults += [Fault.raised(rank, late) for rank in self._silent()]
                    self._wake()
            if not self.failure.done() and self._in_step():
                self._faults = []
                return
        self._wake()
        raise self.failure.result() from error

    def _silent(self) -> list[int]:
        """Ranks that haven't reported of this command."""
        told = self._answers.keys() | {fault.rank for fault in self._faults}
        return [rank for rank in range(self.world_size) if rank not in told]

    def _in_step(self) -> bool:
        """Whether the ranks can go on: none has a fault, or all have the same."""
        if not self._faults:
            return True
        return not self._answers and all(fault.alike(self._faults[0]) for fault in self._faults)

    def _wake(self) -> None:
        with self._changed:
            if self._wake_write >= 0:  # a call that hung may come back after `close`, when the number is another file's
                os.write(self._wake_write, b"!")

    # The watching thread

    def _watch(self, started: Future[None]) -> None:
        """Start the ranks (they end with this thread), then read what they say and print until the group is closed."""
        try:
            for rank in range(1, self.world_size):
                self._ranks.append(RankProcess(rank, self._program, self._environment))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            for process in self._ranks:
                process.kill()
            started.set_exception(error)
            return
        started.set_result(None)
        try:
            self._listen()
        except BaseException as error:  # noqa: BLE001 - nobody else would learn that the ranks aren't watched any more
            _LOG.exception("the trainer's ranks are no longer watched")
            with self._changed:
                self._end(InternalError(f"the watch over the trainer's ranks failed: {error!r}"))

    def _listen(self) -> None:
        """Until the group is closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ, None)
            for process in self._ranks:
                selector.register(process.answers_fd, selectors.EVENT_READ, (process, self._hear))
                selector.register(process.output_fd, selectors.EVENT_READ, (process, RankProcess.read_output))
            while not self._closing:
                for key, _ in selector.select(self._patience()):
                    if key.data is None:
                        os.read(self._wake_read, 4096)
                    elif not key.data[1](key.data[0]):
                        selector.unregister(key.fd)
                self._decide()

    def _hear(self, rank: RankProcess) -> bool:
        """Take in what a rank reports; False when it is gone, or speaks nonsense."""
        ended: Fault | None
        try:
            frames = rank.read_answers()
            reports = [_report(frame) for frame in frames or ()]
        except (ArgosyError, ValueError, KeyError, TypeError) as error:
            frames, reports = None, []
            ended = Fault.raised(rank.rank, error)
        else:
            ended = rank.fault() if frames is None and not self._closing else None
        with self._changed:
            if ended is not None:
                self._faults.append(ended)
            for number, report in reports:
                if number != self._number:
                    continue  # of a command that was given up
                if isinstance(report, Fault):
                    self._faults.append(report)
                else:
                    self._answers[rank.rank] = report
            self._changed.notify_all()
        return frames is not None

    def _patience(self) -> float | None:
        """Seconds until a decision is due; None: nothing is wrong."""
        with self._changed:
            if not self._faults or self.failure.done():
                return None
            return max(0.0, self._decision_time() - time.monotonic())

    def _decision_time(self) -> float:
        if not self._silent():
            return 0.0
        patience = REFUSAL_S if all(fault.is_ours for fault in self._faults) else SETTLE_S
        return min(fault.time for fault in self._faults) + patience

    def _decide(self) -> None:
        """End the group if a fault has settled and the ranks aren't in step."""
        with self._changed:
            due = bool(self._faults) and time.monotonic() >= self._decision_time()
            if not due or self.failure.done() or self._closing or (not self._silent() and self._in_step()):
                return
            cause = first_cause(self._faults)
            silent = [rank for rank in self._silent() if rank]
            error = cause.error(self._doing, silent, self._whereabouts(cause) if cause.in_collective else ())
            if silent:
                error.metadata["silent_ranks"] = ",".join(map(str, silent))
            _LOG.error("%s", error.message)
            self._end(error)

    def _whereabouts(self, cause: Fault) -> list[str]:
        """Of the ranks that one has waited for in vain: where they are, or what they have raised meanwhile."""
        silent = self._silent()
        told = [f"rank {other.rank} was at\n{other.tail}" for other in self._faults if other.rank != cause.rank]
        return told + [rank.whereabouts() for rank in self._ranks if rank.rank in silent]

    def _end(self, error: ArgosyError) -> None:
        """Kill the other ranks and let everybody know why. With the lock held."""
        for rank in self._ranks:
            rank.kill()
        if not self.failure.done():
            self.failure.set_result(error)
        self._changed.notify_all()
        threading.Timer(_ABORT_AFTER_S, _abort_collectives).start()


def _report(frame: Frame) -> tuple[int, Answer | Fault]:
    """Number of the command, and what a rank says of it."""
    if "fault" in frame.header:
        return frame.header["number"], from_plain(Fault, frame.header["fault"])
    return frame.header["number"], Answer(frame.header.get("values", {}), batch_of(frame))


def _abort_collectives() -> None:
    """Wake rank 0 from a collective that its backend doesn't end by itself."""
    from torch import distributed

    if distributed.is_initialized() and distributed.get_backend() != "gloo":
        group = distributed.group.WORLD
        if group is not None:
            group.abort()
