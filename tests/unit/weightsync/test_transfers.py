"""Transfers that meet while they are being opened: one stays, and nothing of the others does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import torch

from argosy.types.errors import AbortedError, FencedError
from argosy.types.records import Mutation, TransferOffer
from argosy.weightsync import Snapshot
from argosy.weightsync.transfers import Transfers
from argosy.weightsync.transports import SendOptions, TransferPlan


class Slow:
    """A transport whose opening takes until it is let through."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[Opened] = asyncio.Queue()

    async def open_transfer(self, snapshot: Snapshot, plan: TransferPlan, options: SendOptions) -> Opened:
        opened = Opened(snapshot, plan)
        self.begun.put_nowait(opened)
        await opened.let_through.wait()
        return opened


class Opened:
    """What such an opening leads to."""

    def __init__(self, snapshot: Snapshot, plan: TransferPlan) -> None:
        self.offers = (TransferOffer("slow", plan.sync_id, snapshot.manifest.version, "nowhere"),)
        self.let_through = asyncio.Event()
        self.closed = 0

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


@pytest.fixture
async def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    transport = Slow()
    monkeypatch.setattr("argosy.weightsync.transfers.load_transport", lambda name: transport)
    return transport


@pytest.fixture
def snapshot() -> Snapshot:
    return Snapshot.freeze("main", 1, {"a": torch.ones(8)})


def by(term: int = 1) -> Mutation:
    return Mutation("run", term, f"open-{term}", 30.0, None)


End = Callable[[Transfers, Snapshot], "asyncio.Task[object]"]


def newer_leader(transfers: Transfers, snapshot: Snapshot) -> asyncio.Task[object]:
    return asyncio.ensure_future(transfers.open(snapshot, "slow", "sync-2", 1, by(2)))


def another_try(transfers: Transfers, snapshot: Snapshot) -> asyncio.Task[object]:
    return asyncio.ensure_future(transfers.open(snapshot, "slow", "sync-1", 1, by(1)))


@pytest.mark.parametrize(("end", "error"), [(newer_leader, FencedError), (another_try, AbortedError)])
@pytest.mark.parametrize("earlier_is_through_first", [True, False])
async def test_of_two_that_are_opened_at_once_the_later_stays(
    slow: Slow, snapshot: Snapshot, end: End, error: type[Exception], earlier_is_through_first: bool
) -> None:
    transfers = Transfers()
    first = asyncio.ensure_future(transfers.open(snapshot, "slow", "sync-1", 1, by(1)))
    earlier = await slow.begun.get()
    second = end(transfers, snapshot)
    later = await slow.begun.get()
    for opened in (earlier, later) if earlier_is_through_first else (later, earlier):
        opened.let_through.set()
        await asyncio.sleep(0.01)
    with pytest.raises(error):
        await first
    assert await second == later.offers
    assert (earlier.closed, later.closed) == (1, 0)
    await transfers.close_all()
    assert later.closed == 1
    assert snapshot.retire() is not None, "nothing holds the snapshot any more"


async def test_an_older_leader_opens_nothing_while_a_newer_one_is_opening(slow: Slow, snapshot: Snapshot) -> None:
    transfers = Transfers()
    newer = asyncio.ensure_future(transfers.open(snapshot, "slow", "sync-2", 1, by(2)))
    opened = await slow.begun.get()
    with pytest.raises(FencedError):
        await asyncio.wait_for(transfers.open(snapshot, "slow", "sync-1", 1, by(1)), 5)
    opened.let_through.set()
    assert await newer == opened.offers
    await transfers.close_all()


async def test_a_transfer_closed_while_it_is_opened_does_not_stay(slow: Slow, snapshot: Snapshot) -> None:
    transfers = Transfers()
    opening = asyncio.ensure_future(transfers.open(snapshot, "slow", "sync-1", 1, by(1)))
    opened = await slow.begun.get()
    await transfers.close("sync-1", by(1))
    opened.let_through.set()
    with pytest.raises(AbortedError):
        await opening
    assert opened.closed == 1
    assert snapshot.retire() is not None
