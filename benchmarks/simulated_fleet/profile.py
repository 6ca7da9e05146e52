"""What a run costs the processor, by place in the code: a sample of the stack each two milliseconds of its time."""

from __future__ import annotations

import gc
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from simulated_fleet.clock import VirtualClockLoop

_INTERVAL_S = 0.002
_SIMULATION = Path(__file__).parent.name
IN_THREADS = "(in threads, while the event loop waits)"
_ROLES = ("server", "trainer", "workload")


@dataclass
class Turn:
    """What is known of one turn of the event loop."""

    number: int = -1
    simulation: int = 0
    """Samples in which the simulated roles were at work."""
    total: int = 0
    functions: Counter[str] = field(default_factory=Counter)

    def controller_s(self, seconds: float) -> float:
        """Of its seconds, what the simulated roles did not take."""
        return seconds * (1 - self.simulation / self.total) if self.total else seconds


class StackSamples:
    """Samples the main thread while the block runs. Costs about a percent.

    Args:
        loop: Whose turns are looked at.
    """

    def __init__(self, loop: VirtualClockLoop) -> None:
        self._loop = loop
        self.simulation = 0
        """Samples in which the simulated roles were at work."""
        self.total = 0
        self.functions: Counter[str] = Counter()
        """Function of ours → samples with it on the stack, itself or what it called; simulated roles left out."""
        self.longest = Turn()
        """The turn of the loop in which the controller itself took longest."""
        self.longest_s = 0.0
        """The controller's share of that turn, processor seconds."""
        self.collector_s: list[float] = []
        """Processor seconds of each full collection of garbage: nothing else runs meanwhile."""
        self._turn = Turn()

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, _INTERVAL_S, _INTERVAL_S)
        gc.callbacks.append(self._collecting)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        gc.callbacks.remove(self._collecting)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)
        self._end_turn()

    @property
    def controller_share(self) -> float:
        """Of the processor time, what the simulated roles did not take."""
        return 1 - self.simulation / max(self.total, 1)

    def top(self, count: int) -> list[tuple[str, float]]:
        """Functions of the controller with the largest shares of its time, callees included."""
        own = max(self.total - self.simulation, 1)
        return [(name, samples / own) for name, samples in self.functions.most_common(count)]

    def top_of_longest(self, count: int) -> list[tuple[str, float]]:
        """The same of the turn in which the controller itself took longest."""
        own = max(self.longest.total - self.longest.simulation, 1)
        return [(name, samples / own) for name, samples in self.longest.functions.most_common(count)]

    def _collecting(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] == 2 and phase == "start":
            self._collection_began = time.thread_time()
        elif info["generation"] == 2:
            self.collector_s.append(time.thread_time() - self._collection_began)

    def _take(self, _: int, frame: FrameType | None) -> None:
        self.total += 1
        if self._loop.waits:
            # Not by function: sys._current_frames() in a signal handler can lock up for good (CPython 3.11).
            self.functions[IN_THREADS] += 1
            return
        if self._turn.number != len(self._loop.pauses):
            self._end_turn()
        self._turn.total += 1
        seen = _functions(frame)
        if seen is None:
            self.simulation += 1
            self._turn.simulation += 1
            return
        self.functions.update(seen)
        self._turn.functions.update(seen)

    def _end_turn(self) -> None:
        turn, pauses = self._turn, self._loop.pauses
        if 0 <= turn.number < len(pauses):
            seconds = turn.controller_s(pauses[turn.number])
            if seconds > self.longest_s:
                self.longest, self.longest_s = turn, seconds
        self._turn = Turn(len(pauses))


def _functions(frame: FrameType | None) -> set[str] | None:
    """Functions of ours on a stack; None where a simulated role is at work."""
    seen: set[str] = set()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.parent.name == _SIMULATION and path.stem in _ROLES:
            return None
        if "argosy" in path.parts:
            seen.add(f"{path.parent.name}/{path.name}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    return seen
