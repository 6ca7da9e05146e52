"""A rate limit as a bucket that fills at a constant rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_BURST_S = 5.0
"""The bucket holds what comes in so many seconds: over any minute at most 65/60 of the limit goes out."""


class RateLimit:
    """At most so many units a minute, first come first served.

    Args:
        per_minute: Units; 0 is no limit.
        clock: Seconds, rising.
    """

    def __init__(self, per_minute: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_minute / 60
        self._capacity = max(1.0, self._rate * _BURST_S)
        self._level = self._capacity
        self._clock = clock
        self._filled_at = clock()
        self._turn = asyncio.Lock()

    async def take(self, units: float = 1.0) -> None:
        """Wait until the units may go out. More than the bucket holds go when it is full, and leave a debt."""
        if not self._rate:
            return
        async with self._turn:
            missing = min(units, self._capacity) - self._fill()
            if missing > 0:
                await asyncio.sleep(missing / self._rate)
                self._fill()
            self._level -= units

    def settle(self, units: float) -> None:
        """Correct an estimate: take `units` more, or give them back where negative, without waiting."""
        if self._rate:
            self._level = min(self._capacity, self._fill() - units)

    def _fill(self) -> float:
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._filled_at) * self._rate)
        self._filled_at = now
        return self._level
