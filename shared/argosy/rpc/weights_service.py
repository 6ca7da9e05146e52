"""WeightsService over any WeightSource. Trainers and rollout servers serve it alike: newcomers pull from either."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from argosy.api.common.v1 import weights_service_pb2 as pb
from argosy.roles.weights import HoldsVersions, WeightSource
from argosy.rpc.codec.common import manifest_to_pb, version_from_pb, version_to_pb
from argosy.rpc.codec.weight_stream import Response, encode
from argosy.rpc.gate import Gate
from argosy.types.errors import InvalidInputError, NotFoundError
from argosy.types.ids import PolicyVersion
from argosy.types.records import WeightsManifest

NAME = pb.DESCRIPTOR.services_by_name["WeightsService"].full_name


class WeightsServicer:
    """Thin: the source decides what it holds."""

    def __init__(self, source: WeightSource, gate: Gate) -> None:
        self._source = source
        self._gate = gate

    async def GetManifest(
        self, request: pb.GetManifestRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetManifestResponse:
        """See the proto."""
        self._gate.admit(request.context)
        manifest = await self._source.get_manifest()
        return pb.GetManifestResponse(context=self._gate.respond(manifest.version), manifest=manifest_to_pb(manifest))

    async def StreamWeights(
        self, request: pb.StreamWeightsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Response]:
        """See the proto. Chunks are left to `encode`."""
        self._gate.admit(request.context)
        if not request.HasField("version"):
            raise InvalidInputError("StreamWeights needs a version", field="version")
        version = version_from_pb(request.version)
        manifest = await self._manifest_of(version)
        names = tuple(request.names)
        header = pb.StreamWeightsHeader(version=version_to_pb(version), size_bytes=_size_bytes(manifest, names))
        yield pb.StreamWeightsResponse(context=self._gate.respond(version), header=header)
        count = 0
        base = version_from_pb(request.base) if request.HasField("base") else None
        async for chunk in self._source.stream_weights(version, names, base=base):
            yield chunk
            count += 1
        yield pb.StreamWeightsResponse(end=pb.StreamWeightsEnd(chunk_count=count))

    async def _manifest_of(self, version: PolicyVersion) -> WeightsManifest:
        if isinstance(self._source, HoldsVersions):
            return await self._source.manifest_of(version)
        manifest = await self._source.get_manifest()
        if manifest.version != version:
            raise NotFoundError(f"this server holds weights {manifest.version.short}, not {version.short}")
        return manifest


def _size_bytes(manifest: WeightsManifest, names: tuple[str, ...]) -> int:
    unknown = sorted(set(names) - {spec.name for spec in manifest.tensors})
    if unknown:
        raise InvalidInputError(f"weights {manifest.version.short} have no tensor {unknown[0]!r}", field="names")
    return sum(spec.size_bytes for spec in manifest.tensors if not spec.tied_to and (not names or spec.name in names))


def add_to_server(source: WeightSource, server: grpc.aio.Server, gate: Gate) -> list[str]:
    """Serve `source`; returns the full service names."""
    servicer = WeightsServicer(source, gate)
    # As the generated function does it, but with a serializer of our own.
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "GetManifest": grpc.unary_unary_rpc_method_handler(
            servicer.GetManifest, pb.GetManifestRequest.FromString, pb.GetManifestResponse.SerializeToString
        ),
        "StreamWeights": grpc.unary_stream_rpc_method_handler(
            servicer.StreamWeights, pb.StreamWeightsRequest.FromString, encode
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))
    server.add_registered_method_handlers(NAME, handlers)
    return [NAME]
