"""Every weight transport keeps the same promises: the four phases end to end, in process and over gRPC."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from argosy.roles.rollout import Rollout
from argosy.types.errors import FencedError, InvalidInputError, NotFoundError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import TransferOffer
from argosy.weightsync import Snapshot, Staging
from argosy.weightsync.collective.process import close_idle
from argosy.weightsync.transfers import Transfers
from argosy.weightsync.transports import TRANSPORTS, SendOptions, load_transport
from contract.forms import Form, MakeRollout, mutation
from contract.test_weight_sync import answers, freeze, weights_of

PARALLEL = SendOptions(bucket_bytes=1 << 16, streams=3)


@pytest.fixture(params=sorted(TRANSPORTS))
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def transfers(tmp_path: Path) -> AsyncIterator[Transfers]:
    opened = Transfers(dataclasses.replace(PARALLEL, folder=str(tmp_path / "weights")))
    yield opened
    await opened.close_all()


@pytest.fixture(scope="module", autouse=True)
def _workers() -> object:
    yield
    close_idle()


async def begin(rollout: Rollout, snapshot: Snapshot, transport: str, sync_id: str = "sync-1") -> None:
    await rollout.init_weight_transfer(transport, mutation())
    await rollout.start_weight_update(sync_id, snapshot.manifest, mutation())


async def test_d1_every_transport_brings_the_same_weights(
    form: Form, make_rollout: MakeRollout, other_tiny: Path, transport: str, transfers: Transfers
) -> None:
    rollout = await form.rollout(make_rollout())
    snapshot = freeze(weights_of(other_tiny))
    source = await form.source(snapshot)
    (offer,) = await transfers.open(snapshot, transport, "sync-1", 1, mutation())
    await begin(rollout, snapshot, transport)
    taken = await rollout.update_weights("sync-1", source, mutation(), offer)
    assert taken > 0
    assert await rollout.finish_weight_update("sync-1", mutation()) == snapshot.manifest.version
    await transfers.close("sync-1", mutation())
    assert await answers(rollout) == await answers(make_rollout(other_tiny))


async def test_d10_an_offer_of_another_sync_is_refused(
    form: Form, make_rollout: MakeRollout, other_tiny: Path, transport: str
) -> None:
    rollout = await form.rollout(make_rollout())
    before = (await rollout.status()).version
    snapshot = freeze(weights_of(other_tiny))
    source = await form.source(snapshot)
    await begin(rollout, snapshot, transport)
    late = TransferOffer(transport, "sync-0", snapshot.manifest.version, "nowhere:1")
    other = TransferOffer(transport, "sync-1", PolicyVersion("main", 7, "d"), "nowhere:1")
    for offer in (late, other):
        with pytest.raises(InvalidInputError, match="the offer is for"):
            await rollout.update_weights("sync-1", source, mutation(), offer)
    with pytest.raises(StateError, match="has not received"):
        await rollout.finish_weight_update("sync-1", mutation())
    assert (await rollout.status()).version == before


async def test_d10_memory_that_is_another_by_now_leaves_the_old_version_on(
    form: Form, make_rollout: MakeRollout, other_tiny: Path, transfers: Transfers
) -> None:
    """The deaths of a collective's ends are in tests/chaos: they cost seconds each."""
    name = "shared_memory"
    rollout = await form.rollout(make_rollout())
    before, old = (await rollout.status()).version, await answers(rollout)
    snapshot = freeze(weights_of(other_tiny))
    source = await form.source(snapshot)
    (offer,) = await transfers.open(snapshot, name, "sync-1", 1, mutation())
    await transfers.close("sync-1", mutation())
    other = freeze(weights_of(other_tiny))
    assert other.buffer.file is not None
    offer = dataclasses.replace(offer, endpoint=other.buffer.file.path)
    await begin(rollout, snapshot, name)
    with pytest.raises(NotFoundError):
        await rollout.update_weights("sync-1", source, mutation(deadline_s=10), offer)
    assert (await rollout.status()).version == before
    assert await answers(rollout) == old
    (again,) = await transfers.open(snapshot, name, "sync-1", 1, mutation())
    await rollout.update_weights("sync-1", source, mutation(), again)
    assert await rollout.finish_weight_update("sync-1", mutation()) == snapshot.manifest.version


async def test_a_collective_sender_on_every_interface_reaches_receivers_of_a_group(other_tiny: Path) -> None:
    """Also: whichever backend is right for both ends is found when they meet, and nobody has to fill the host in."""
    transfers = Transfers(dataclasses.replace(PARALLEL, host="0.0.0.0", broadcast=True))
    snapshot = freeze(weights_of(other_tiny))
    offers = await transfers.open(snapshot, "collective", "sync-1", 2, mutation())
    assert all(offer.endpoint.startswith(":") and offer.options["backend"] == "auto" for offer in offers)
    stagings = [Staging(snapshot.manifest) for _ in offers]
    module = load_transport("collective")
    await asyncio.gather(*(
        module.receive(offer, snapshot, snapshot.manifest, staging, 60)
        for offer, staging in zip(offers, stagings, strict=True)
    ))  # fmt: skip
    await transfers.close("sync-1", mutation())
    assert all(staging.is_whole for staging in stagings)


async def test_transfers_are_fenced_and_end_by_themselves(other_tiny: Path, transfers: Transfers) -> None:
    snapshot = freeze(weights_of(other_tiny))
    await transfers.open(snapshot, "stream", "sync-1", 1, mutation(term=2))
    with pytest.raises(FencedError):
        await transfers.open(snapshot, "stream", "sync-1", 1, mutation(term=1))
    # What a newer leader finds open belongs to one that is gone.
    await transfers.open(snapshot, "stream", "sync-2", 1, mutation(term=3))
    await transfers.close("sync-2", mutation(term=3))
    assert snapshot.retire() is not None, "nothing holds the snapshot any more"


async def test_a_version_that_is_being_sent_is_not_overwritten(other_tiny: Path, transfers: Transfers) -> None:
    state = weights_of(other_tiny)
    snapshot = freeze(state)
    await transfers.open(snapshot, "shared_memory", "sync-1", 1, mutation())
    following = Snapshot.freeze("main", 2, {name: tensor + 1 for name, tensor in state.items()}, reuse=snapshot)
    assert following.buffer.memory is not snapshot.buffer.memory
    await transfers.close("sync-1", mutation())
    after = Snapshot.freeze("main", 3, state, reuse=following)
    assert after.buffer.memory is following.buffer.memory
