"""Snapshot → transport → staging, in one process."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import AsyncIterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from argosy.types.errors import CorruptDataError, DeadlineError, InvalidInputError, NotFoundError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import WeightChunk, WeightsManifest
from argosy.weightsync import Snapshot, Staging, build_manifest, verify_agreement, verify_canary
from argosy.weightsync.transports import load_transport
from argosy.weightsync.transports.stream import pull as receive

State = dict[str, torch.Tensor]
TIED = {"head.weight": "embed.weight"}


async def chunks_of(snapshot: Snapshot) -> list[WeightChunk]:
    return [chunk async for chunk in snapshot.stream_weights(snapshot.manifest.version)]


def assert_equal(received: State, sent: State) -> None:
    assert received.keys() == sent.keys()
    for name, tensor in sent.items():
        assert received[name].dtype == tensor.dtype
        assert received[name].shape == tensor.shape
        assert torch.equal(received[name], tensor), name


async def test_every_tensor_arrives_and_tied_names_share_memory(snapshot: Snapshot, state: State) -> None:
    staging = Staging(snapshot.manifest)
    await receive(snapshot, snapshot.manifest, staging, 10)
    received = staging.finish()
    assert_equal(received, state)
    assert received["head.weight"].data_ptr() == received["embed.weight"].data_ptr()
    assert staging.received_byte_count == staging.size_bytes == sum(len(c.data) for c in await chunks_of(snapshot))
    held = build_manifest("main", 1, received, TIED)
    verify_agreement(snapshot.manifest, held)


async def test_chunks_are_about_one_mebibyte_and_checked(snapshot: Snapshot) -> None:
    chunks = await chunks_of(snapshot)
    sizes = [len(chunk.data) for chunk in chunks if chunk.name == "embed.weight"]
    assert sizes == [1 << 20, 700 * 500 * 4 - (1 << 20)]
    assert all(zlib.crc32(chunk.data) == chunk.checksum for chunk in chunks)
    assert {chunk.name for chunk in chunks} == {"embed.weight", "layer.weight", "layer.scale"}


def test_the_snapshots_manifest_is_build_manifests(snapshot: Snapshot, state: State) -> None:
    assert snapshot.manifest == build_manifest("main", 1, state, TIED)


async def test_a_snapshot_does_not_change_while_training_goes_on(snapshot: Snapshot, state: State) -> None:
    before = {name: tensor.clone() for name, tensor in state.items()}
    for tensor in state.values():
        tensor += 1
    staging = Staging(snapshot.manifest)
    await receive(snapshot, snapshot.manifest, staging, 10)
    assert_equal(staging.finish(), before)


def test_freeze_casts_floating_tensors_only() -> None:
    frozen = Snapshot.freeze("main", 0, {"w": torch.tensor([1.00390625]), "ids": torch.tensor([5])}, dtype="bfloat16")
    assert {spec.name: spec.dtype for spec in frozen.manifest.tensors} == {"w": "bfloat16", "ids": "int64"}
    assert torch.equal(frozen.tensors()["w"], torch.tensor([1.00390625]).to(torch.bfloat16))


def test_memory_is_reused_from_version_to_version(snapshot: Snapshot, state: State) -> None:
    place = snapshot.tensors()["embed.weight"].data_ptr()
    state["embed.weight"].add_(1)
    newer = Snapshot.freeze("main", 2, state, TIED, reuse=snapshot)
    assert newer.tensors()["embed.weight"].data_ptr() == place
    first = Staging(newer.manifest)
    place = first.retire().views["embed.weight"].ctypes.data  # type: ignore[union-attr]
    assert Staging(newer.manifest, reuse=first)._buffer.views["embed.weight"].ctypes.data != place
    second = Staging(newer.manifest)
    place = second._buffer.views["embed.weight"].ctypes.data
    assert Staging(newer.manifest, reuse=second)._buffer.views["embed.weight"].ctypes.data == place
    with pytest.raises(StateError):
        second.finish()


async def test_a_replaced_snapshot_serves_nothing_new_but_a_running_stream_ends_right(
    snapshot: Snapshot, state: State
) -> None:
    before = {name: tensor.clone() for name, tensor in state.items()}
    staging, manifest = Staging(snapshot.manifest), snapshot.manifest
    stream = snapshot.stream_weights(manifest.version)
    staging.write(await anext(stream))
    for tensor in state.values():
        tensor += 1
    newer = Snapshot.freeze("main", 2, state, TIED, reuse=snapshot)
    async for chunk in stream:
        staging.write(chunk)
    assert_equal(staging.finish(), before)
    with pytest.raises(NotFoundError, match="replaced"):
        await snapshot.get_manifest()
    with pytest.raises(NotFoundError):
        await anext(snapshot.stream_weights(manifest.version))
    assert (await newer.get_manifest()).version.step == 2


async def test_a_receiver_serves_on_what_it_received(snapshot: Snapshot, state: State) -> None:
    staging = Staging(snapshot.manifest)
    await receive(snapshot, snapshot.manifest, staging, 10)
    second_hand = Snapshot.of_staging(staging)
    again = Staging(second_hand.manifest)
    await receive(second_hand, await second_hand.get_manifest(), again, 10)
    assert_equal(again.finish(), state)
    assert second_hand.manifest.version == snapshot.manifest.version
    with pytest.raises(StateError):
        staging.finish()
    copied = Snapshot(snapshot.manifest, again.finish())
    assert copied.manifest == snapshot.manifest
    with pytest.raises(CorruptDataError, match=r"layer\.scale"):
        Snapshot(snapshot.manifest, state | {"layer.scale": torch.tensor(0.25)})


async def test_another_version_or_name_is_not_found(snapshot: Snapshot) -> None:
    with pytest.raises(NotFoundError, match="main@2"):
        await anext(snapshot.stream_weights(PolicyVersion("main", 2, snapshot.manifest.version.digest)))
    with pytest.raises(InvalidInputError, match="nonsense"):
        await anext(snapshot.stream_weights(snapshot.manifest.version, ("nonsense",)))
    named = [c.name async for c in snapshot.stream_weights(snapshot.manifest.version, ("layer.scale",))]
    assert named == ["layer.scale"]


class Dying:
    """A source that ends (or raises) after some chunks."""

    address = "nowhere:1"

    def __init__(self, snapshot: Snapshot, chunk_count: int, error: Exception | None) -> None:
        self.snapshot, self.chunk_count, self.error = snapshot, chunk_count, error

    async def get_manifest(self) -> WeightsManifest:
        return self.snapshot.manifest

    async def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        for index, chunk in enumerate(await chunks_of(self.snapshot)):
            if index == self.chunk_count:
                break
            yield chunk
        if self.error is not None:
            raise self.error


async def test_d10_a_sender_that_stops_half_way_leaves_nothing(snapshot: Snapshot) -> None:
    staging = Staging(snapshot.manifest)
    await receive(Dying(snapshot, 1, None), snapshot.manifest, staging, 10)
    with pytest.raises(CorruptDataError, match=r"embed\.weight: 1048576 of 1400000 bytes"):
        staging.finish()
    with pytest.raises(ConnectionError):
        await receive(Dying(snapshot, 1, ConnectionError()), snapshot.manifest, Staging(snapshot.manifest), 10)


async def test_a_sender_that_hangs_costs_the_deadline(snapshot: Snapshot) -> None:
    class Hanging(Dying):
        async def stream_weights(
            self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
        ) -> AsyncIterator[WeightChunk]:
            async for chunk in super().stream_weights(version):
                yield chunk
            await asyncio.sleep(60)

    with pytest.raises(DeadlineError, match="1048576 of 140"):
        await receive(Hanging(snapshot, 1, None), snapshot.manifest, Staging(snapshot.manifest), 0.05)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"checksum": 1}, "crc32"),
        ({"name": "layer.wieght"}, "no bytes for a tensor"),
        ({"name": "head.weight"}, "no bytes for a tensor"),
        ({"offset": 8}, "do not lie within"),
        ({"offset": -1}, "do not lie within"),
        ({"data": b""}, "do not lie within"),
    ],
)
async def test_d10_a_wrong_chunk_is_refused(snapshot: Snapshot, change: dict[str, object], words: str) -> None:
    last = (await chunks_of(snapshot))[-1]
    fields: dict[str, object] = {name: getattr(last, name) for name in ("name", "offset", "data", "checksum")}
    with pytest.raises(CorruptDataError, match=words):
        Staging(snapshot.manifest).write(WeightChunk(**(fields | change)))  # type: ignore[arg-type]


async def test_d10_other_bytes_with_right_chunk_checksums_fail_at_the_end(snapshot: Snapshot) -> None:
    staging = Staging(snapshot.manifest)
    for chunk in await chunks_of(snapshot):
        data = bytes(len(chunk.data)) if chunk.name == "layer.scale" else chunk.data
        staging.write(WeightChunk(chunk.name, chunk.offset, data, zlib.crc32(data)))
    with pytest.raises(CorruptDataError, match=r"1 tensors are wrong: layer\.scale"):
        staging.finish()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 97), lost=st.booleans(), repeated=st.booleans())
def test_any_order_and_size_of_chunks_gives_the_same_bytes_or_an_error(
    seed: int, size: int, lost: bool, repeated: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    sent = {
        "a": torch.randn(5, 7, generator=generator),
        "b": torch.randn(31, generator=generator).to(torch.bfloat16),
        "c": torch.randint(-9, 9, (3,), generator=generator),
    }
    snapshot = Snapshot.freeze("main", 0, sent)
    draw = random.Random(seed)
    chunks = []
    for name, view in snapshot._buffer.views.items():
        start = 0
        while start < len(view):
            data = view[start : start + draw.randint(1, size)].tobytes()
            chunks.append(WeightChunk(name, start, data, zlib.crc32(data)))
            start += len(data)
    draw.shuffle(chunks)
    staging = Staging(snapshot.manifest)
    for chunk in chunks[1:] if lost else chunks:
        staging.write(chunk)
    if repeated and len(chunks) > 1:
        with pytest.raises(CorruptDataError, match="twice"):
            staging.write(chunks[-1])
    if lost:
        with pytest.raises(CorruptDataError, match="did not arrive whole"):
            staging.finish()
    else:
        assert_equal(staging.finish(), sent)


def test_agreement_names_the_tensors_that_differ(state: State) -> None:
    sent = build_manifest("main", 1, state, TIED)
    verify_agreement(sent, build_manifest("main", 1, state, TIED))
    with pytest.raises(CorruptDataError, match="the tensors are equal"):
        verify_agreement(sent, build_manifest("main", 2, state, TIED))
    state["layer.scale"] = torch.tensor(7.0)
    with pytest.raises(CorruptDataError, match=r"tensors that differ: layer\.scale$"):
        verify_agreement(sent, build_manifest("main", 1, state, TIED))


def test_the_canary_sees_other_log_probs_nan_and_other_lengths() -> None:
    assert verify_canary([-1.0, -2.0], [-1.0, -2.0001]) == pytest.approx(1e-4)
    assert verify_canary([], []) == 0.0
    for receiver in ([-1.0, -2.3], [-1.0, float("nan")], [-1.0]):
        with pytest.raises(CorruptDataError, match="canary"):
            verify_canary([-1.0, -2.0], receiver)


def test_an_unknown_transport_is_refused_by_name() -> None:
    with pytest.raises(InvalidInputError, match=r"'nccl'.*stream"):
        load_transport("nccl")
