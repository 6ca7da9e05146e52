"""Who brings weights to rollout servers when: a sync of all and the catching up of single servers never meet."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any


class Turns:
    """A sync of all servers goes first: it ends what single ones are being brought, since that is old by then."""

    def __init__(self) -> None:
        self._whole = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._singles: set[asyncio.Task[None]] = set()
        self._one_by_one: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.lending: Counter[str] = Counter()
        """Member → servers that are being brought its weights."""
        self.left_out: set[str] = set()
        """Members whose last sync has failed, and that have not answered since. Syncs pass them over."""
        self.watches: dict[str, asyncio.Task[None]] = {}
        """Member → who waits for it to answer again, and brings it back."""

    @asynccontextmanager
    async def whole(self) -> AsyncIterator[None]:
        """For a sync of all servers. Single ones wait until its end."""
        async with self._whole:
            self._idle.clear()
            try:
                running = list(self._singles)
                for task in running:
                    task.cancel()
                if running:
                    await asyncio.wait(running)
                yield
            finally:
                self._idle.set()

    async def single(self, member: str, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Do what brings weights to one server, once no sync of all runs; one at a time for each member.

        False if a sync of all has ended it. What the work raises is raised.
        """
        async with self._one_by_one[member]:
            while not self._idle.is_set():
                await self._idle.wait()
            task = asyncio.create_task(work(), name=f"weights for {member}")
            self._singles.add(task)
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait({task})
                raise
            finally:
                self._singles.discard(task)
            if task.cancelled():
                return False
            task.result()
            return True

    async def close(self) -> None:
        """Wait for nobody any more."""
        tasks = list(self.watches.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
