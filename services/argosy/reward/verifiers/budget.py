"""What the sample that is being judged in this worker may take: its quota, and how long its children may stay.

`verify` doesn't see it. What runs in processes of its own (`isolation`, the sandbox) asks before it begins, and is
ended at the quota; the sample is then judged again from the start, in the slow lane, where there is no quota.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager


class PutAsideError(BaseException):
    """The sample exceeds its quota. Not an Exception, so that no library on the way takes it for its own."""


class Budget:
    """One sample's. Processor seconds of what runs for it in other processes."""

    def __init__(self) -> None:
        self.background = False
        """Whether children have the lowest priority, so that they give way to everything else. For a worker's life."""
        self.spent_s = 0.0
        """By the sample so far, or by the last one."""
        self.end = math.inf
        """When whoever waits for the sample gives it up, by time.monotonic()."""
        self._quota_s = math.inf

    @contextmanager
    def sample(self, *, quota_s: float | None, allowed_s: float) -> Iterator[None]:
        """Bounds what is judged within it. `quota_s`: None is none. `allowed_s`: seconds on the clock."""
        self.spent_s, self.end = 0.0, time.monotonic() + allowed_s
        self._quota_s = math.inf if quota_s is None else quota_s
        try:
            yield
        finally:
            self.end = self._quota_s = math.inf  # not for whatever this process does next

    @property
    def left_s(self) -> float:
        """Of the quota."""
        return self._quota_s - self.spent_s

    def spend(self, seconds: float) -> None:
        """It took this much."""
        self.spent_s += seconds


BUDGET = Budget()
"""The worker's own."""
