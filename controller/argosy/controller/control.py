"""Pausing, resuming and stopping a run from outside, at step boundaries."""

from __future__ import annotations

import asyncio
import logging

log = logging.getLogger(__name__)


class RunControl:
    """Shared by the loop, which obeys it, and by ControllerService and the signal handlers, which set it."""

    def __init__(self) -> None:
        self._running = asyncio.Event()
        self._running.set()
        self.stop_requested = False
        """The loop ends after the step that it is in."""
        self.stage = "start"
        """What the loop waits for right now."""

    @property
    def paused(self) -> bool:
        """Whether the loop will wait, or waits, at the next step boundary."""
        return not self._running.is_set()

    def pause(self) -> None:
        """Wait at the next step boundary."""
        self._running.clear()

    def resume(self) -> None:
        """Go on."""
        self._running.set()

    def stop(self) -> None:
        """End after the present step, keeping its work."""
        self.stop_requested = True
        self._running.set()

    async def at_step_boundary(self, step: int) -> None:
        """Called by the loop between two steps: returns at once unless paused."""
        if self.paused:
            log.info("paused after step %d", step)
            self.stage = "paused"
            await self._running.wait()
