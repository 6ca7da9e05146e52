"""From whom a server takes a version's bytes: the trainer serves the first few, servers that have them all others.

    trainer ─► a ─► c ─► f
           │    └─► e
           └─► b ─► d          a, b: fan_out = 2; each that has all bytes passes them on, to one server at a time

So the trainer sends a version a few times however many servers there are, and the time grows with the logarithm of
their number. A server passes bytes on that it has checked, and is asked for a version by its digest: what it serves
itself at that moment plays no part, and one that lacks the version can't be a source of it (case E11).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

from argosy.roles.weights import SOURCE, WeightSource
from argosy.types.errors import ArgosyError

TRAINER = ""
"""As a holder's member id."""
MIN_PATIENCE_S, MAX_PATIENCE_S = 1.0, 30.0
"""Bounds of `patience_of` where nothing is known of how long a transfer takes."""


def patience_of(deadline_s: float, transfer_s: float = 0.0) -> float:
    """How long a server waits for others to pass weights on, in a sync of that deadline, if the last one's transfers
    took `transfer_s`.

    >>> [patience_of(2), patience_of(100), patience_of(600), patience_of(600, 60), patience_of(600, 300)]
    [1.0, 10.0, 30.0, 120, 150.0]
    """
    unknown_s = min(max(0.1 * deadline_s, MIN_PATIENCE_S), MAX_PATIENCE_S)
    return max(unknown_s, min(2 * transfer_s, 0.25 * deadline_s))


@dataclass(frozen=True, slots=True, eq=False)
class Holder:
    """Somebody who has the version's bytes."""

    member: str
    source: WeightSource
    hops: int = 0
    """Between it and the trainer."""


class Sources:
    """Holders of one version, and who may take it from whom now.

    Args:
        trainer: Where the bytes are at the beginning.
        fan_out: Servers that take them from the trainer; None: all do, and no server passes them on. The trainer serves
            more only if nobody else can.
        patience_s: Seconds without any change after which one of those who wait is served by the trainer all the same:
            those who take the bytes now may be frozen.
    """

    def __init__(self, trainer: WeightSource, fan_out: int | None, patience_s: float = MAX_PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._trainer = Holder(TRAINER, trainer)
        self._relays = fan_out is not None
        self._left = fan_out or 0
        self._free: deque[Holder] = deque()
        self._lent = 0
        self._changed = asyncio.Event()
        self._changed_at = _now()

    def add(self, holder: Holder) -> None:
        """A server has all bytes from now on."""
        if self._relays:
            self._free.append(holder)
            self._tell()

    @asynccontextmanager
    async def lent(self, besides: Collection[str] = (), *, last: bool = False) -> AsyncIterator[Holder]:
        """Wait for a holder, not one of `besides` if there is another, and take from it within the context.

        One that an error in there blames (`blamed`) is no source any more. On a `last` try the trainer is asked at
        once: too many others have failed.
        """
        holder = self._ask_trainer() if last else self._pick(besides)
        while holder is None:
            holder = self._pick(besides) if await self._change() else self._ask_trainer()
        self._lent += 1
        self._tell()
        try:
            yield holder
        except BaseException as error:
            if holder.member == TRAINER:
                self._left += 1  # nobody has got the bytes that were sent
            elif not blamed(error):
                self.add(holder)
            raise
        else:
            if holder.member != TRAINER:
                self.add(holder)
        finally:
            self._lent -= 1
            self._tell()

    async def _change(self) -> bool:
        """Wait until anything is otherwise; False if nothing is for too long, to one of those who wait."""
        self._changed.clear()
        try:
            async with asyncio.timeout(self._patience_s):
                await self._changed.wait()
        except TimeoutError:
            if _now() - self._changed_at >= self._patience_s:
                self._tell()  # the others wait as long again
                return False
        return True

    def _tell(self) -> None:
        self._changed_at = _now()
        self._changed.set()

    def _pick(self, besides: Collection[str]) -> Holder | None:
        if not self._relays:
            return self._trainer
        if self._left > 0 and TRAINER not in besides:
            return self._ask_trainer()
        for holder in self._free:
            if holder.member not in besides:
                self._free.remove(holder)
                return holder
        # Whoever takes the bytes now will have them, or give back what it took them from.
        return None if self._lent else self._ask_trainer()

    def _ask_trainer(self) -> Holder:
        self._left -= 1
        return self._trainer


def blamed(error: BaseException) -> str:
    """The address of the source to which a server puts its failure down; "" if it was the server's own."""
    return error.metadata.get(SOURCE, "") if isinstance(error, ArgosyError) else ""


def _now() -> float:
    return asyncio.get_running_loop().time()
