"""Full collections of garbage at moments of our own, since the event loop stands still for as long as one takes.

Python begins one whenever a quarter more objects are there than at the last. A sample under way is some 25 of them, so
with ten thousand samples that is a quarter of a second, several times a step; with a hundred thousand it is seconds,
and leases run out. What samples leave behind is hardly ever a cycle: young collections and reference counts free it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

AT_EASE = 4096
"""Open samples up to which every step ends with a full collection: about a tenth of a second."""
AT_LAST = 50
"""Steps after which one is due however many samples are open: what does become a cycle must not pile up for ever."""
_NEVER = 1 << 30
_running = 0
"""Runs in this process; the first one to begin sets the collector, the last one to end sets it back."""
_usual = gc.get_threshold()


class Collections:
    """Of one run."""

    def __init__(self) -> None:
        self._steps = 0

    def step_done(self, open_count: int) -> None:
        """A step is over; so many samples are open."""
        self._steps += 1
        if open_count <= AT_EASE or self._steps >= AT_LAST:
            gc.collect()
            self._steps = 0


@contextmanager
def own_collections() -> Iterator[Collections]:
    """No full collections but those of `Collections` while the block runs, and none over what was there before it."""
    global _running, _usual
    if not _running:
        _usual = gc.get_threshold()
        gc.set_threshold(*_usual[:2], _NEVER)
        gc.freeze()
    _running += 1
    try:
        yield Collections()
    finally:
        _running -= 1
        if not _running:
            gc.unfreeze()
            gc.set_threshold(*_usual)
