"""What was judged is not paid for twice: a bounded memory of outcomes, in which equal questions share one asking."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from argosy.types.ids import SampleId
from argosy.types.records import Failed, Outcome

Key = tuple[SampleId, str]


def key_of(sample: SampleId, messages: Sequence[object], version: str) -> Key:
    """Same sample, same content, same judge."""
    content = repr((version, messages)).encode("utf-8", "surrogatepass")
    return sample, hashlib.sha256(content).hexdigest()


class JudgementMemory:
    """Outcomes by sample and content, the least recently used forgotten first. Failures are not kept.

    Args:
        size: Outcomes that are kept; 0 keeps none, but askings that run are still shared.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: OrderedDict[Key, Outcome] = OrderedDict()
        self._running: dict[Key, asyncio.Task[Outcome]] = {}
        self.hits = 0
        """Outcomes that cost nothing."""

    def __len__(self) -> int:
        return len(self._known)

    async def get(self, key: Key, ask: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """The known outcome, that of the asking that runs, or a new one's.

        An asking goes on if its caller gives up, so that what it costs isn't lost; it has a deadline of its own.
        """
        if key in self._known:
            self.hits += 1
            self._known.move_to_end(key)
            return self._known[key]
        task = self._running.get(key)
        if task is not None:
            self.hits += 1
        else:
            task = asyncio.ensure_future(ask())
            self._running[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End the askings that run."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, key: Key, task: asyncio.Task[Outcome]) -> None:
        self._running.pop(key, None)
        if task.cancelled() or task.exception() is not None or isinstance(task.result(), Failed) or not self._size:
            return
        self._known[key] = task.result()
        while len(self._known) > self._size:
            self._known.popitem(last=False)
