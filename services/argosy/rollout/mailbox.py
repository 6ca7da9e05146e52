"""Events from an engine's thread to one caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from argosy.rollout.deadline import in_time
from argosy.rollout.engines.events import Event


class Mailbox:
    """One caller's events, in order. Bounded by the caller's own samples and tokens.

    Args:
        loop: The caller's.
        deadline: On the `time.monotonic` clock.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self._loop = loop
        self._deadline = deadline
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self.closed = False
        """Set by a caller that leaves: what still comes is dropped."""

    def deliver(self, event: Event) -> None:
        """From any thread."""
        if not self.closed:
            try:
                self._loop.call_soon_threadsafe(self._events.put_nowait, event)
            except RuntimeError:  # the caller's loop ended without closing its generator: nobody waits any more
                self.closed = True

    async def get(self, waiting_count: int) -> Event:
        """The next event. DeadlineError, which tells how many samples are waited for, when the time is up."""
        async with self.in_time(waiting_count):
            return await self._events.get()

    @contextlib.asynccontextmanager
    async def in_time(self, waiting_count: int) -> AsyncIterator[None]:
        """What is done within it ends with DeadlineError when the time is up."""
        left_s = self._deadline - time.monotonic()
        async with in_time(left_s, lambda: f"{waiting_count} samples were not finished within the deadline"):
            yield
