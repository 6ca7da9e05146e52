"""How much processor time a sample may take before it leaves the fast lane, learned from what its neighbours took.

An answer that costs a hundred ordinary ones takes their place: with 1 % of them throughput halves. So the costliest
samples are put aside and judged when nobody else wants the processor (`lanes`). What is costly depends on the data: a
formula is evaluated in a millisecond, a program runs for seconds. Hence a quota for each data source, from the samples
that were judged last.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection

_WINDOW = 512
"""Samples of a source that are looked at."""
_LEAST = 64
"""Samples before there is a quota."""
_RENEWED_EVERY = 32
_ORDINARY = 0.95
"""If more than 1 in 20 samples are costly they aren't exceptions, and nobody is put aside."""
_FACTOR = 5.0
"""A sample put aside has cost at most this many ordinary ones: 1 % of them take 5 % of the time."""
_ROOM = 1.5
"""And the costliest ordinary sample is this far from the quota."""
_MOST_SOURCES = 256


class Quotas:
    """Costs and quotas by data source, in processor seconds. For any number of threads.

    `least_s`: of a data source, a bound from below.
    """

    def __init__(self, least_s: Callable[[str], float]) -> None:
        self._least_s = least_s
        self._lock = threading.Lock()
        self._sources: OrderedDict[str, _Costs] = OrderedDict()

    def quota_s(self, source: str) -> float | None:
        """What a sample may take now; None while too little is known, or if costly samples are ordinary here."""
        with self._lock:
            costs = self._sources.get(source)
            if costs is None or costs.quota_s is None:
                return None
            return max(costs.quota_s, costs.least_s)

    def note(self, source: str, cost_s: float) -> None:
        """A sample took this much; `math.inf` if it was put aside."""
        with self._lock:
            costs = self._sources.get(source)
            if costs is None:
                costs = self._sources[source] = _Costs(self._least_s(source))
                if len(self._sources) > _MOST_SOURCES:
                    self._sources.popitem(last=False)
            self._sources.move_to_end(source)
            costs.add(cost_s)


class _Costs:
    def __init__(self, least_s: float) -> None:
        self.least_s = least_s
        self.quota_s: float | None = None
        self._latest: deque[float] = deque(maxlen=_WINDOW)
        self._new = 0

    def add(self, cost_s: float) -> None:
        self._latest.append(cost_s)
        self._new += 1
        if len(self._latest) >= _LEAST and self._new >= _RENEWED_EVERY:
            self._new = 0
            self.quota_s = _quota(self._latest)


def _quota(costs: Collection[float]) -> float | None:
    ordinary = sorted(costs)[: int(_ORDINARY * len(costs))]
    if ordinary[-1] == math.inf:
        return None
    return max(_FACTOR * sum(ordinary) / len(ordinary), _ROOM * ordinary[-1])
