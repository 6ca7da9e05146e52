"""How far generation may run ahead of training."""

from __future__ import annotations

import asyncio


class StalenessGate:
    """Lets step s be generated once the weights of step s - 1 - max_staleness are everywhere.

    >>> gate = StalenessGate(0)
    >>> gate.open(0); gate.allows(1), gate.allows(2)
    (True, False)
    """

    def __init__(self, max_staleness: int) -> None:
        self._max_staleness = max_staleness
        self._synced = -1
        self._changed = asyncio.Event()

    def allows(self, step: int) -> bool:
        """Whether step `step` may be generated now."""
        return step - 1 - self._synced <= self._max_staleness

    def open(self, synced_step: int) -> None:
        """The weights of `synced_step` are everywhere."""
        self._synced = synced_step
        self._changed.set()

    async def wait(self, step: int) -> None:
        """Return when `step` may be generated."""
        while not self.allows(step):
            self._changed.clear()
            await self._changed.wait()
