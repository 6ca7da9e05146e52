"""One server's way to new weights, within one deadline: the first three phases, from whoever has the bytes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from argosy.controller.context import RunContext
from argosy.controller.stages.sources import Holder, Sources, blamed
from argosy.types.errors import ArgosyError, DeadlineError
from argosy.types.records import TransferOffer, WeightsManifest

log = logging.getLogger(__name__)

MAX_SOURCES = 3
"""Holders that a server tries in one sync; the last of them is the trainer."""


class Deadline:
    """When a sync is over, whatever is still under way."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = asyncio.get_running_loop().time() + seconds

    @asynccontextmanager
    async def bound(self, what: str) -> AsyncIterator[None]:
        """End what runs in the context when the time is up: DeadlineError then says `what` was not done."""
        try:
            async with asyncio.timeout_at(self._end):
                yield
        except TimeoutError as error:
            raise DeadlineError(f"{what}: not within the {self.seconds:g} s of the sync") from error

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        """Time that doesn't count: samples are waited for, which have a bound of their own."""
        begun = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._end += asyncio.get_running_loop().time() - begun

    def copy(self) -> Deadline:
        """For one server of several: what is suspended for it costs the others nothing."""
        copied = Deadline(self.seconds)
        copied._end = self._end
        return copied


@dataclass(frozen=True, slots=True)
class Update:
    """What a server is to take, and under which name."""

    member: str
    sync_id: str
    manifest: WeightsManifest
    offer: TransferOffer
    attempt: int = 1

    @property
    def names(self) -> tuple[object, ...]:
        """For request ids."""
        return (self.sync_id, self.member, self.offer.transport, self.attempt)


@dataclass(frozen=True, slots=True)
class Staged:
    """What a server has received and checked, from whom, and the seconds that it took."""

    byte_count: int
    holder: Holder
    check_s: float
    transfer_s: float


async def stage(ctx: RunContext, update: Update, sources: Sources, begin: Callable[[], None]) -> Staged:
    """Bring a version's bytes into a server's staging area. `begin` is called when there is a source for it.

    A source that fails costs another try from another one. Raises what the server itself fails with, and what the last
    of `MAX_SOURCES` sources did.
    """
    server, names = ctx.services.rollouts[update.member], update.names
    begun, check_s, failed = False, 0.0, set[str]()
    for number in range(1, MAX_SOURCES + 1):
        try:
            async with sources.lent(failed, last=number == MAX_SOURCES) as holder:
                clock = time.perf_counter()
                if not begun:
                    begin()
                    await server.init_weight_transfer(update.offer.transport, ctx.mutation("sync-init", *names))
                    await server.start_weight_update(
                        update.sync_id, update.manifest, ctx.mutation("sync-start", *names)
                    )
                    begun, check_s = True, time.perf_counter() - clock
                    clock = time.perf_counter()
                mutation = ctx.mutation("sync-update", *names, number)
                byte_count = await server.update_weights(update.sync_id, holder.source, mutation, update.offer)
                return Staged(byte_count, holder, check_s, time.perf_counter() - clock)
        except ArgosyError as error:
            if number == MAX_SOURCES or not blamed(error):
                raise
            failed.add(holder.member)
            ctx.count("sync/rerouted")
            log.warning("%s takes its weights from another server: %s", update.member, brief(error))
    raise AssertionError("the last try returns or raises")


def brief(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip() or type(error).__name__
    line = text.splitlines()[0]
    return line if len(line) <= 300 else line[:299] + "…"
