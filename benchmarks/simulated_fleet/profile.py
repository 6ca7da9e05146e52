"""What a run costs the processor, by place in the code: a sample of the stack each millisecond of processor time."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

_INTERVAL_S = 0.002
_SIMULATION = Path(__file__).parent.name


class StackSamples:
    """Samples the main thread while the block runs. Costs about a percent."""

    def __init__(self) -> None:
        self.simulation = 0
        """Samples in which the simulated roles were at work."""
        self.total = 0
        self.functions: Counter[str] = Counter()
        """Function of ours → samples with it on the stack, itself or what it called; simulated roles left out."""

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, _INTERVAL_S, _INTERVAL_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    @property
    def controller_share(self) -> float:
        """Of the processor time, what the simulated roles did not take."""
        return 1 - self.simulation / max(self.total, 1)

    def top(self, count: int) -> list[tuple[str, float]]:
        """Functions of the controller with the largest shares of its time, callees included."""
        own = max(self.total - self.simulation, 1)
        return [(name, samples / own) for name, samples in self.functions.most_common(count)]

    def _take(self, _: int, frame: FrameType | None) -> None:
        self.total += 1
        seen: set[str] = set()
        first = True
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.parent.name == _SIMULATION and path.stem in ("server", "trainer", "workload"):
                self.simulation += 1
                return
            if "argosy" in path.parts and first is not None:
                seen.add(f"{path.parent.name}/{path.name}:{frame.f_code.co_qualname}")
            frame = frame.f_back
        self.functions.update(seen)
