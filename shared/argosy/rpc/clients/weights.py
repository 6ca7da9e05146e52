"""A WeightSource in another process."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import TYPE_CHECKING, cast

import grpc

from argosy.api.common.v1 import weights_service_pb2 as pb
from argosy.api.common.v1.weights_service_pb2_grpc import WeightsServiceStub
from argosy.rpc.channel import Caller
from argosy.rpc.codec.common import (
    manifest_from_pb,
    read_context_to_pb,
    version_from_pb,
    version_to_pb,
)
from argosy.rpc.codec.weight_stream import Response, decode
from argosy.rpc.errors import from_rpc_error
from argosy.rpc.options import RpcOptions
from argosy.types.errors import CorruptDataError
from argosy.types.ids import PolicyVersion
from argosy.types.records import WeightChunk, WeightsManifest

if TYPE_CHECKING:
    from argosy.api.common.v1.weights_service_pb2_grpc import WeightsServiceAsyncStub

_STREAM = f"/{pb.DESCRIPTOR.services_by_name['WeightsService'].full_name}/StreamWeights"
MANIFEST_DEADLINE_S = 30.0
"""For a manifest, all tries included: it is small, and whoever serves it has it ready."""


class GrpcWeightSource:
    """The WeightsService of a trainer or a rollout server; implements `argosy.roles.weights.WeightSource`."""

    def __init__(self, address: str, *, options: RpcOptions | None = None, caller: Caller | None = None) -> None:
        """`caller` shares another client's connection, which then is not closed by this one."""
        self._caller = caller or Caller(address, what="weights", options=options)
        self._owns_caller = caller is None
        self._address = address
        self.received_size_bytes = 0
        """Bytes of all chunks taken so far."""
        self._stub = cast("WeightsServiceAsyncStub", WeightsServiceStub(self._caller.channel))
        self._stream = self._caller.channel.unary_stream(
            _STREAM, request_serializer=pb.StreamWeightsRequest.SerializeToString, response_deserializer=decode
        )

    @property
    def address(self) -> str:
        """host:port of the WeightsService."""
        return self._address

    async def get_manifest(self) -> WeightsManifest:
        """The manifest of the version that the server holds. NotFoundError if none."""
        response = await self._caller.unary(
            self._stub.GetManifest,
            lambda left_s: pb.GetManifestRequest(context=read_context_to_pb(deadline_s=left_s)),
            deadline_s=MANIFEST_DEADLINE_S,
        )
        return manifest_from_pb(response.manifest)

    async def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        """The bytes in chunks; gRPC's flow control slows the sender down to the reader's pace.

        Raises CorruptDataError on a stream cut short, NotFoundError if the server holds another version, and
        UnavailableError if it is lost. Has no deadline of its own: the transport's ends it.
        """
        held = None if base is None else version_to_pb(base)
        call = self._stream(pb.StreamWeightsRequest(version=version_to_pb(version), names=names, base=held))
        try:
            async for chunk in _chunks(call, version):
                self.received_size_bytes += len(chunk.data)
                yield chunk
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer=self._caller.what) from error
        finally:
            call.cancel()  # nothing happens if it has ended

    async def close(self) -> None:
        """End the connection, if it is this source's own."""
        if self._owns_caller:
            await self._caller.close()


async def _chunks(call: AsyncIterable[Response], version: PolicyVersion) -> AsyncIterator[WeightChunk]:
    """The chunks between header and end, both checked."""
    announced = received = count = 0
    begun = False
    async for response in call:
        if isinstance(response, WeightChunk):
            if not begun:
                raise CorruptDataError(f"the stream of weights {version.short} has a chunk before its header")
            yield response
            count, received = count + 1, received + response.size_bytes
            continue
        part = response.WhichOneof("part")
        if part == "header" and not begun:
            begun, announced = True, response.header.size_bytes
            if version_from_pb(response.header.version) != version:
                raise CorruptDataError(f"asked for weights {version.short}, the stream brings others")
        elif part == "end" and begun:
            if (received, count) != (announced, response.end.chunk_count):
                raise CorruptDataError(
                    f"the stream of weights {version.short} ended after {received} of {announced} bytes"
                )
            return
        else:
            raise CorruptDataError(f"the stream of weights {version.short} has {part or 'nothing'} in a wrong place")
    raise CorruptDataError(f"the stream of weights {version.short} was cut short after {received} of {announced} bytes")
