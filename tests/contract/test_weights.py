"""The weights role: a snapshot in this process, and the same behind WeightsService."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

from argosy.api.common.v1 import weights_service_pb2 as pb
from argosy.api.common.v1 import weights_service_pb2_grpc
from argosy.rpc import weights_service
from argosy.rpc.clients.weights import GrpcWeightSource
from argosy.rpc.codec.common import version_to_pb, weight_chunk_to_pb
from argosy.rpc.gate import Gate
from argosy.types.errors import CorruptDataError, InvalidInputError, NotFoundError, UnavailableError
from argosy.types.records import WeightChunk
from argosy.weightsync import Snapshot, Staging
from argosy.weightsync.transports.stream import pull as receive
from contract.forms import Form


@pytest.fixture
def snapshot() -> Snapshot:
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(600, 600, generator=generator)
    state = {"embed": embedding, "half": torch.randn(9, generator=generator).to(torch.bfloat16), "head": embedding}
    return Snapshot.freeze("main", 4, state, {"head": "embed"})


async def test_manifest_and_bytes_are_the_same(form: Form, snapshot: Snapshot) -> None:
    source = await form.source(snapshot)
    assert bool(source.address) == form.remote
    manifest = await source.get_manifest()
    assert manifest == snapshot.manifest
    staging = Staging(manifest)
    await receive(source, manifest, staging, 30)
    received = staging.finish()
    for name, tensor in snapshot.tensors().items():
        assert torch.equal(received[name], tensor)
    assert received["head"].data_ptr() == received["embed"].data_ptr()


async def test_some_tensors_only(form: Form, snapshot: Snapshot) -> None:
    source = await form.source(snapshot)
    chunks = [chunk async for chunk in source.stream_weights(snapshot.manifest.version, ("half", "head"))]
    assert [(chunk.name, len(chunk.data)) for chunk in chunks] == [("half", 18)]


async def test_another_version_is_not_found_and_an_unknown_tensor_invalid(form: Form, snapshot: Snapshot) -> None:
    source = await form.source(snapshot)
    with pytest.raises(NotFoundError, match="main@5"):
        await anext(source.stream_weights(dataclasses.replace(snapshot.manifest.version, step=5)))
    with pytest.raises(InvalidInputError, match="'nonsense'"):
        await anext(source.stream_weights(snapshot.manifest.version, ("nonsense",)))


async def test_a_reader_that_leaves_sets_the_snapshot_free(form: Form, snapshot: Snapshot) -> None:
    source = await form.source(snapshot)
    stream: Any = source.stream_weights(snapshot.manifest.version)
    await anext(stream)
    await stream.aclose()
    async for _ in source.stream_weights(snapshot.manifest.version, ("half",)):
        pass
    assert snapshot.retire() is not None


class Faulty(weights_service_pb2_grpc.WeightsServiceServicer):
    """A WeightsService that ends its stream wrongly."""

    def __init__(self, snapshot: Snapshot, fault: str) -> None:
        self._snapshot = snapshot
        self._fault = fault

    async def StreamWeights(
        self, request: pb.StreamWeightsRequest, context: Any
    ) -> AsyncIterator[pb.StreamWeightsResponse]:
        version = self._snapshot.manifest.version
        chunks: list[WeightChunk] = [chunk async for chunk in self._snapshot.stream_weights(version)]
        size_bytes = sum(len(chunk.data) for chunk in chunks)
        if self._fault == "version":
            version = dataclasses.replace(version, step=9)
        if self._fault != "header":
            header = pb.StreamWeightsHeader(version=version_to_pb(version), size_bytes=size_bytes)
            yield pb.StreamWeightsResponse(header=header)
        for chunk in chunks[: -1 if self._fault in ("lost", "cut") else None]:
            yield pb.StreamWeightsResponse(chunk=weight_chunk_to_pb(chunk))
        if self._fault == "lost":
            yield pb.StreamWeightsResponse(end=pb.StreamWeightsEnd(chunk_count=len(chunks) - 1))


@pytest.mark.parametrize("fault", ["version", "header", "lost", "cut"])
async def test_d10_a_stream_that_is_not_whole_is_seen(grpc_form: Form, snapshot: Snapshot, fault: str) -> None:
    def add(server: Any, gate: Gate) -> list[str]:
        weights_service_pb2_grpc.add_WeightsServiceServicer_to_server(Faulty(snapshot, fault), server)  # type: ignore[abstract]
        return [weights_service.NAME]

    source = GrpcWeightSource(await grpc_form.serve(add))
    with pytest.raises(CorruptDataError):
        await receive(source, snapshot.manifest, Staging(snapshot.manifest), 30)
    await source.close()


async def test_d10_a_sender_that_is_killed_half_way(grpc_form: Form) -> None:
    snapshot = Snapshot.freeze("main", 0, {"large": torch.zeros(12 << 20)})  # more than flow control lets through
    source = await grpc_form.source(snapshot)
    stream = source.stream_weights(snapshot.manifest.version)
    await anext(stream)
    await grpc_form.servers[-1].server.stop(None)
    with pytest.raises(UnavailableError):
        [chunk async for chunk in stream]
    with pytest.raises(UnavailableError):
        await anext(source.stream_weights(snapshot.manifest.version))
