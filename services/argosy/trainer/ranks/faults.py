"""What went wrong on a rank, as a message; and which of several faults was the cause of the others (case E12)."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from argosy.types import errors
from argosy.types.errors import ArgosyError, InternalError

_COLLECTIVES = "/torch/distributed/"
_TAIL_LINES = 12
_TAIL_CHARACTERS = 2000
_CONSEQUENT_SIGNALS = (signal.SIGABRT,)
"""By which libraries of collectives end a process whose peer is gone."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One rank raised an error, or is gone."""

    rank: int
    time: float
    """time.monotonic(), which the processes of one machine share."""
    kind: str
    """The exception's class; for a rank that is gone "exit"."""
    message: str
    tail: str = ""
    """End of the traceback, or of what the process printed."""
    died: bool = False
    by_signal: int = 0
    """That killed it."""
    in_collective: bool = False
    """Raised where ranks meet: most likely for want of another rank."""
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def raised(cls, rank: int, error: BaseException) -> Fault:
        """From an exception, where it is caught."""
        lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
        return cls(
            rank=rank,
            time=time.monotonic(),
            kind=type(error).__name__,
            message=error.message if isinstance(error, ArgosyError) else str(error),
            tail="\n".join(lines[-_TAIL_LINES:])[-_TAIL_CHARACTERS:],
            in_collective=_is_in_collective(error),
            metadata=error.metadata if isinstance(error, ArgosyError) else {},
        )

    @classmethod
    def ended(cls, rank: int, pid: int, returncode: int, output: Sequence[str]) -> Fault:
        """From a process that ended by itself."""
        how = f"exited with code {returncode}"
        if returncode < 0:
            how = f"was killed by {_signal_name(-returncode)}"
            if -returncode == signal.SIGKILL:
                how += " (kill -9, or the kernel for want of memory)"
        return cls(
            rank=rank,
            time=time.monotonic(),
            kind="exit",
            message=f"process {pid} {how}",
            tail="\n".join(output[-_TAIL_LINES:])[-_TAIL_CHARACTERS:],
            died=True,
            by_signal=max(-returncode, 0),
        )

    @property
    def is_ours(self) -> bool:
        """Whether it is an error that Argosy raises on purpose: most are refusals, alike on all ranks."""
        kind = getattr(errors, self.kind, None)
        return isinstance(kind, type) and issubclass(kind, ArgosyError)

    def alike(self, other: Fault) -> bool:
        """Whether it is the same error on another rank: then the ranks are still in step."""
        return not self.died and (self.kind, self.message) == (other.kind, other.message)

    def error(self, doing: str, silent: Sequence[int] = (), whereabouts: Sequence[str] = ()) -> ArgosyError:
        """The exception that the caller gets; of the same class if it is one of ours.

        Args:
            doing: The command that failed.
            silent: Ranks that have reported nothing, for which this one may have waited in vain.
            whereabouts: Where the other ranks are.
        """
        what = self.message if self.died else f"{self.kind}: {self.message}"
        text = f"trainer rank {self.rank} failed in {doing}: {what}"
        if self.tail:
            text += f"\n{self.tail}"
        text += "".join(f"\n{place}" for place in whereabouts)
        if silent and self.in_collective:
            text += (
                f"\nrank {self.rank} waited in vain: no word from rank {', '.join(map(str, silent))}, which hangs, is "
                "stopped, or is slower than argosy.trainer.rank_timeout_s"
            )
        kind: Any = getattr(errors, self.kind) if self.is_ours else InternalError
        made: ArgosyError = kind(text)
        made.metadata = {**self.metadata, "rank": str(self.rank)}
        return made


def first_cause(faults: Sequence[Fault]) -> Fault:
    """The fault that the others followed from.

    A rank that is gone tells nobody, and one that raises may leave its group before it tells, so the others' broken
    connections can be noticed earlier than their cause. So a death by a signal comes first, then what wasn't raised in
    a collective; among equals the earliest.
    """
    return min(faults, key=lambda fault: (_consequence(fault), fault.time))


def _consequence(fault: Fault) -> int:
    """0: surely a cause; 2: most likely not."""
    if fault.by_signal and fault.by_signal not in _CONSEQUENT_SIGNALS:
        return 0
    return 2 if fault.in_collective or fault.by_signal else 1


def _is_in_collective(error: BaseException) -> bool:
    """Whether the innermost call was one of torch.distributed's."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and _COLLECTIVES in frames[-1].filename.replace("\\", "/")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
