"""The transfers that a sender has open: fenced by sync and term, and none of them for ever."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from argosy.types.errors import AbortedError, FencedError
from argosy.types.records import Mutation, TransferOffer
from argosy.weightsync.transports import SendOptions, Transfer, TransferPlan, load_transport

if TYPE_CHECKING:
    from argosy.weightsync.snapshot import Snapshot

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Open:
    transfer: Transfer
    snapshot: Snapshot
    term: int
    timer: asyncio.TimerHandle


@dataclass(frozen=True, slots=True, eq=False)
class _Ticket:
    """A transfer that is being opened. Whoever takes its ticket away (a newer leader, another try, a close) ends it."""

    term: int


class Transfers:
    """Opens and closes transfers of snapshots. All methods belong to one event loop."""

    def __init__(self, options: SendOptions | None = None) -> None:
        self._options = options or SendOptions()
        self._open: dict[tuple[str, str, str], _Open] = {}
        """By (run id, sync id, transport)."""
        self._opening: dict[tuple[str, str, str], _Ticket] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def open(
        self, snapshot: Snapshot, transport: str, sync_id: str, receiver_count: int, ctx: Mutation
    ) -> tuple[TransferOffer, ...]:
        """Offer the snapshot by a transport until it is closed, at the latest after ctx.deadline_s.

        Transfers of the run's older leaders are closed, and so is this sync's former one by the same transport; those
        that are still being opened are closed as soon as they are. Raises FencedError if a newer leader has one open,
        AbortedError if this one was replaced or closed while it was opened, InvalidInputError, NotFoundError as
        `Policy.open_transfer` says.
        """
        module = load_transport(transport)
        fence = f"{ctx.run_id}/{ctx.term}/{sync_id}/{secrets.token_hex(8)}"
        plan = TransferPlan(sync_id, receiver_count, ctx.deadline_s, fence)
        key = (ctx.run_id, sync_id, transport)
        ticket = _Ticket(ctx.term)
        outdated = self._fence(ctx)
        # Before anything is waited for: of two that open at the same time the later one wins.
        self._opening[key] = ticket
        snapshot.hold()
        try:
            for old in dict.fromkeys([*outdated, key]):
                await self._close(old)
            transfer = await module.open_transfer(snapshot, plan, self._options)
            if self._opening.get(key) is not ticket:
                await transfer.close()
                self._fence(ctx)
                raise AbortedError(f"the transfer of sync {sync_id} by {transport} was ended while it was being opened")
        except BaseException:
            snapshot.release()
            raise
        finally:
            if self._opening.get(key) is ticket:
                del self._opening[key]
        timer = asyncio.get_running_loop().call_later(ctx.deadline_s, self._expire, key, transfer)
        self._open[key] = _Open(transfer, snapshot, ctx.term, timer)
        return transfer.offers

    async def close(self, sync_id: str, ctx: Mutation) -> None:
        """End the sync's transfers, those that are being opened too. Nothing happens if there are none."""
        for key in [key for key in self._opening if key[:2] == (ctx.run_id, sync_id)]:
            del self._opening[key]
        for key in [key for key in self._open if key[:2] == (ctx.run_id, sync_id)]:
            await self._close(key)

    async def close_all(self) -> None:
        """End every transfer."""
        self._opening.clear()
        for key in list(self._open):
            await self._close(key)
        await asyncio.gather(*self._closing)

    def _fence(self, ctx: Mutation) -> list[tuple[str, str, str]]:
        """What older leaders have open, to be closed; what they are opening has lost its ticket. FencedError if a newer
        one is there."""
        held = {key: one.term for key, one in self._open.items() if key[0] == ctx.run_id}
        opening = {key: one.term for key, one in self._opening.items() if key[0] == ctx.run_id}
        newest = max((*held.values(), *opening.values()), default=ctx.term)
        if newest > ctx.term:
            raise FencedError(f"term {ctx.term} of run {ctx.run_id} is over: term {newest} has a transfer open")
        for key in [key for key, term in opening.items() if term < ctx.term]:
            del self._opening[key]
        return [key for key, term in held.items() if term < ctx.term]

    async def _close(self, key: tuple[str, str, str]) -> None:
        held = self._open.pop(key, None)
        if held is not None:
            held.timer.cancel()
            try:
                await held.transfer.close()
            finally:
                held.snapshot.release()

    def _expire(self, key: tuple[str, str, str], transfer: Transfer) -> None:
        held = self._open.get(key)
        if held is not None and held.transfer is transfer:
            _LOG.warning("transfer of sync %s by %s was not closed in time; it is ended", key[1], key[2])
            task = asyncio.create_task(self._close(key))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
