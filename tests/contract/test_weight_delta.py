"""Deltas to a real engine, over a stream and through a disk: exact, small, and never half of one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from argosy.roles.rollout import Rollout
from argosy.roles.weights import WeightSource
from argosy.types.errors import CorruptDataError, StorageError
from argosy.types.ids import PolicyVersion
from argosy.types.records import TransferOffer
from argosy.weightsync import Snapshot, find_tied
from argosy.weightsync.chain import read_links
from argosy.weightsync.transports import SendOptions, TransferPlan, load_transport
from contract.forms import Form, MakeRollout, collect, mutation, request
from contract.test_weight_sync import State, weights_of

ASKED = [request(position, temperature=0.0) for position in range(3)]


def moved(state: State, seed: int) -> State:
    """A hundred values of each matrix are others; the tied head still shares memory."""
    generator = torch.Generator().manual_seed(seed)
    found = {name: tensor.clone() for name, tensor in state.items()}
    for tensor in found.values():
        if tensor.ndim == 2:
            places = torch.randperm(tensor.numel(), generator=generator)[:100]
            tensor.view(-1)[places] += 0.5
    tied = find_tied(state)
    return found | {name: found[owner] for name, owner in tied.items()}


def freeze(state: State, step: int, before: Snapshot | None = None) -> Snapshot:
    return Snapshot.freeze("main", step, state, find_tied(state), reuse=before, delta=True)


async def sync(
    rollout: Rollout, source: WeightSource, snapshot: Snapshot, offer: TransferOffer | None = None
) -> tuple[PolicyVersion, int]:
    """The version that is served, and the bytes that it took."""
    manifest = snapshot.manifest
    sync_id = f"sync-{manifest.version.step}" if offer is None else offer.sync_id
    await rollout.init_weight_transfer("stream" if offer is None else offer.transport, mutation())
    await rollout.start_weight_update(sync_id, manifest, mutation())
    took = await rollout.update_weights(sync_id, source, mutation(), offer)
    return await rollout.finish_weight_update(sync_id, mutation()), took


async def answers(rollout: Rollout) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    found = await collect(rollout, ASKED)
    return [(found[one.key].token_ids, tuple(found[one.key].log_probs)) for one in ASKED]


def size_of(snapshot: Snapshot) -> int:
    return sum(spec.size_bytes for spec in snapshot.manifest.tensors if not spec.tied_to)


async def test_a_second_version_over_the_stream_takes_its_changes_only(
    form: Form, make_rollout: MakeRollout, other_tiny: Path
) -> None:
    rollout, fresh = await form.rollout(make_rollout()), await form.rollout(make_rollout())
    state = weights_of(other_tiny)
    snapshot = freeze(state, 1)
    version, took = await sync(rollout, await form.source(snapshot), snapshot)
    assert (version, took) == (snapshot.manifest.version, size_of(snapshot))
    for step in (2, 3):
        state = moved(state, step)
        snapshot = freeze(state, step, snapshot)
        version, took = await sync(rollout, await form.source(snapshot), snapshot)
        assert version == snapshot.manifest.version
        assert 0 < took < size_of(snapshot) / 10
        _, whole = await sync(fresh, await form.source(snapshot), snapshot)
        assert (whole == size_of(snapshot)) == (step == 2), "the other server began with nothing of it"
        assert await answers(rollout) == await answers(fresh)


async def through(folder: Path, snapshot: Snapshot, sync_id: str) -> TransferOffer:
    plan = TransferPlan(sync_id, 1, 60, "fence")
    transfer = await load_transport("disk").open_transfer(snapshot, plan, SendOptions(folder=str(folder)))
    return transfer.offers[0]


async def test_a_disk_serves_the_same_and_a_newcomer_reads_the_chain(
    form: Form, make_rollout: MakeRollout, other_tiny: Path, tmp_path: Path
) -> None:
    rollout = await form.rollout(make_rollout())
    state = weights_of(other_tiny)
    snapshot = freeze(state, 1)
    _, took = await sync(rollout, await form.source(snapshot), snapshot, await through(tmp_path, snapshot, "s1"))
    assert took == size_of(snapshot)
    snapshot = freeze(moved(state, 2), 2, snapshot)
    offer = await through(tmp_path, snapshot, "s2")
    _, took = await sync(rollout, await form.source(snapshot), snapshot, offer)
    assert took < size_of(snapshot) / 10
    newcomer = await form.rollout(make_rollout(start_stale=True))
    _, took = await sync(newcomer, await form.source(snapshot), snapshot, offer)
    assert took > size_of(snapshot)
    assert await answers(newcomer) == await answers(rollout)


async def test_d10_after_a_damaged_link_the_old_version_answers_and_the_next_try_mends_it(
    form: Form, make_rollout: MakeRollout, other_tiny: Path, tmp_path: Path
) -> None:
    rollout = await form.rollout(make_rollout())
    state = weights_of(other_tiny)
    snapshot = freeze(state, 1)
    await sync(rollout, await form.source(snapshot), snapshot, await through(tmp_path, snapshot, "s1"))
    before = await answers(rollout)
    snapshot = freeze(moved(state, 2), 2, snapshot)
    offer = await through(tmp_path, snapshot, "s2")
    link = read_links(tmp_path)[-1]
    path = link.folder / link.files[0].name
    path.write_bytes(path.read_bytes()[:-1] + b"\x99")
    with pytest.raises(CorruptDataError, match=link.folder.name):
        await sync(rollout, await form.source(snapshot), snapshot, offer)
    assert await answers(rollout) == before
    version, _ = await sync(rollout, await form.source(snapshot), snapshot, await through(tmp_path, snapshot, "s2"))
    assert version == snapshot.manifest.version
    assert await answers(rollout) != before


async def test_a_disk_that_can_not_be_written_leaves_the_old_version_serving(
    make_rollout: MakeRollout, other_tiny: Path, tmp_path: Path
) -> None:
    rollout = make_rollout()
    before = await answers(rollout)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match=r"argosy\.weight_sync\.disk_path"):
        await through(tmp_path / "file", freeze(weights_of(other_tiny), 1), "s1")
    assert await answers(rollout) == before
