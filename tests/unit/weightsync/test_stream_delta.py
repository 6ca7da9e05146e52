"""Deltas over a stream: only to what the receiver says it holds, checked like any bytes, and full bytes otherwise."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from argosy.types.errors import CorruptDataError
from argosy.types.records import WeightChunk
from argosy.weightsync import Snapshot, Staging
from argosy.weightsync.delta import Delta
from argosy.weightsync.transports.stream import pull

State = dict[str, torch.Tensor]
TIES = {"head.weight": "embed.weight"}


def after_a_step(state: State) -> State:
    """A few elements moved; the tied head still shares memory."""
    generator = torch.Generator().manual_seed(9)
    moved = {name: tensor.clone() for name, tensor in state.items()}
    places = torch.randperm(moved["embed.weight"].numel(), generator=generator)[:500]
    moved["embed.weight"].view(-1)[places] *= 1.001
    return moved | {"head.weight": moved["embed.weight"]}


def next_version(snapshot: Snapshot, state: State, step: int = 2) -> Snapshot:
    return Snapshot.freeze("main", step, after_a_step(state), TIES, reuse=snapshot, delta=True)


async def received(snapshot: Snapshot, reuse: Staging | None = None) -> Staging:
    staging = Staging(snapshot.manifest, reuse=reuse)
    await pull(snapshot, snapshot.manifest, staging, 30)
    return staging


async def sent_bytes(snapshot: Snapshot, staging: Staging) -> int:
    stream = snapshot.stream_weights(snapshot.manifest.version, base=staging.base)
    return sum([len(chunk.data) async for chunk in stream])


async def test_a_receiver_of_the_version_before_gets_a_delta(snapshot: Snapshot, state: State) -> None:
    held = await received(snapshot)
    before = snapshot.manifest.version
    after = next_version(snapshot, state)
    delta = after.delta
    assert isinstance(delta, Delta)
    assert delta.base == before
    staging = Staging(after.manifest, reuse=held)
    assert staging.base == before
    assert await sent_bytes(after, staging) == delta.size_bytes < staging.size_bytes / 50
    await pull(after, after.manifest, staging, 30)
    assert staging.received_byte_count == staging.size_bytes == delta.whole_size_bytes
    for name, tensor in staging.finish().items():
        assert torch.equal(tensor, after.tensors()[name])
    assert after.changed_share == pytest.approx(500 / (700 * 500 + 33 * 7 + 1))


async def test_deltas_follow_each_other(snapshot: Snapshot, state: State) -> None:
    staging = await received(snapshot)
    for step in range(2, 6):
        state = after_a_step(state)
        snapshot = next_version(snapshot, state, step)
        staging = await received(snapshot, staging)
        assert staging.base is not None
        assert staging.is_whole


@pytest.mark.parametrize("holds", ["nothing", "an older one", "half of it", "another layout"])
async def test_who_holds_anything_else_gets_whole_weights(snapshot: Snapshot, state: State, holds: str) -> None:
    held: Staging | None = None
    if holds == "an older one":
        held = await received(snapshot)
        snapshot = next_version(snapshot, state)
        state = after_a_step(state)
    elif holds == "half of it":
        held = Staging(snapshot.manifest)
        async for chunk in snapshot.stream_weights(snapshot.manifest.version):
            held.write(chunk)
            break
    elif holds == "another layout":
        other = Snapshot.freeze("main", 0, {"embed.weight": state["embed.weight"]})
        held = await received(other)
    after = next_version(snapshot, state, 3)
    staging = Staging(after.manifest, reuse=held)
    assert await sent_bytes(after, staging) == staging.size_bytes
    await pull(after, after.manifest, staging, 30)
    assert staging.is_whole


async def test_no_delta_is_made_unasked_or_of_other_tensors(snapshot: Snapshot, state: State) -> None:
    plain = Snapshot.freeze("main", 2, state, TIES, reuse=snapshot)
    assert plain.delta is None
    del state["layer.scale"]
    assert Snapshot.freeze("main", 3, state, TIES, reuse=plain, delta=True).delta is None


async def test_held_bytes_that_are_not_what_they_were_are_noticed(snapshot: Snapshot, state: State) -> None:
    held = await received(snapshot)
    after = next_version(snapshot, state)
    staging = Staging(after.manifest, reuse=held)
    staging.buffer.memory[4000] ^= 4
    await pull(after, after.manifest, staging, 30)
    with pytest.raises(CorruptDataError, match=r"embed\.weight"):
        staging.finish()
    again = await received(after, staging)
    assert again.base is None, "what is not whole is no base"
    assert again.is_whole


async def test_a_delta_without_anything_held_or_with_a_damaged_record_is_refused(
    snapshot: Snapshot, state: State
) -> None:
    held = await received(snapshot)
    after = next_version(snapshot, state)
    base = held.manifest.version
    chunks = [chunk async for chunk in after.stream_weights(after.manifest.version, base=base)]
    with pytest.raises(CorruptDataError, match="no version is held"):
        Staging(after.manifest).write(chunks[0])
    staging = Staging(after.manifest, reuse=held)
    with pytest.raises(CorruptDataError, match="announced"):
        staging.write(dataclasses.replace(chunks[0], data=bytes(chunks[0].data[:-1]) + b"x"))
    outside = WeightChunk("layer.scale", 0, chunks[0].data, chunks[0].checksum, chunks[0].delta_size_bytes)
    with pytest.raises(CorruptDataError, match="do not lie within"):
        staging.write(outside)
