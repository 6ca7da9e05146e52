"""RolloutService and WeightsService over a rollout core: decode, call the core, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from argosy.api.common.v1.context_pb2 import ResponseContext
from argosy.api.rollout.v1 import generate_pb2, rollout_service_pb2_grpc
from argosy.api.rollout.v1 import rollout_service_pb2 as pb
from argosy.rpc import weights_service
from argosy.rpc.clients.weights import GrpcWeightSource
from argosy.rpc.codec.common import manifest_from_pb, offer_from_pb, version_to_pb
from argosy.rpc.codec.rollout import PAUSE_MODES, key_from_pb, rollout_status_to_pb
from argosy.rpc.gate import Gate
from argosy.rpc.generate_session import GenerateSession, ServedRollout
from argosy.rpc.options import RpcOptions
from argosy.types.errors import InvalidInputError
from argosy.types.records import Mutation

NAME = pb.DESCRIPTOR.services_by_name["RolloutService"].full_name
DEFAULT_STREAM_DEADLINE_S = 3600.0
"""For samples that came with no deadline, on a stream without one."""

Response = TypeVar("Response", bound=Message)
Context = grpc.aio.ServicerContext[Any, Any]


class RolloutServicer(rollout_service_pb2_grpc.RolloutServiceServicer):
    """Thin: the core does the work, the gate fences and remembers answers."""

    def __init__(
        self, core: ServedRollout, gate: Gate, interval_tokens: int | None, options: RpcOptions | None
    ) -> None:
        self._core = core
        self._gate = gate
        self._interval_tokens = interval_tokens
        self._options = options

    async def Generate(
        self, request_iterator: AsyncIterator[generate_pb2.GenerateRequest], context: Context
    ) -> AsyncIterator[generate_pb2.GenerateResponse]:
        """See the proto."""
        left_s = context.time_remaining()
        session = GenerateSession(
            self._core, self._gate, DEFAULT_STREAM_DEADLINE_S if left_s is None else left_s, self._interval_tokens
        )
        async for response in session.run(request_iterator):
            yield response

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """See the proto."""

        async def work(ctx: Mutation) -> pb.AbortResponse:
            count = await self._core.abort(None if request.all else [key_from_pb(key) for key in request.keys], ctx)
            return pb.AbortResponse(context=await self._respond(), aborted_count=count)

        return await self._gate.mutate("Abort", request.context, context, work)

    async def Pause(self, request: pb.PauseRequest, context: Context) -> pb.PauseResponse:
        """See the proto."""
        modes = {value: name for name, value in PAUSE_MODES.items()}
        if request.mode not in modes:
            raise InvalidInputError(f"mode must be one of {sorted(PAUSE_MODES)}, got {request.mode}", field="mode")

        async def work(ctx: Mutation) -> pb.PauseResponse:
            await self._core.pause(modes[request.mode], ctx)
            return pb.PauseResponse(context=await self._respond())

        return await self._gate.mutate("Pause", request.context, context, work)

    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.ResumeResponse:
        """See the proto."""
        return await self._plain("Resume", request, context, self._core.resume, pb.ResumeResponse)

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        """See the proto."""
        return await self._plain("Drain", request, context, self._core.drain, pb.DrainResponse)

    async def Sleep(self, request: pb.SleepRequest, context: Context) -> pb.SleepResponse:
        """See the proto."""

        async def do(ctx: Mutation) -> None:
            await self._core.sleep(request.level, ctx)

        return await self._plain("Sleep", request, context, do, pb.SleepResponse)

    async def Wake(self, request: pb.WakeRequest, context: Context) -> pb.WakeResponse:
        """See the proto."""
        return await self._plain("Wake", request, context, self._core.wake, pb.WakeResponse)

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """See the proto."""
        self._gate.admit(request.context)
        status = await self._core.status()
        message = rollout_status_to_pb(status)
        message.context.CopyFrom(self._gate.respond(status.version))
        return message

    async def InitWeightTransfer(
        self, request: pb.InitWeightTransferRequest, context: Context
    ) -> pb.InitWeightTransferResponse:
        """See the proto."""

        async def do(ctx: Mutation) -> None:
            await self._core.init_weight_transfer(request.transport, ctx)

        return await self._plain("InitWeightTransfer", request, context, do, pb.InitWeightTransferResponse)

    async def StartWeightUpdate(
        self, request: pb.StartWeightUpdateRequest, context: Context
    ) -> pb.StartWeightUpdateResponse:
        """See the proto."""
        manifest = manifest_from_pb(request.manifest)

        async def do(ctx: Mutation) -> None:
            await self._core.start_weight_update(request.sync_id, manifest, ctx)

        return await self._plain("StartWeightUpdate", request, context, do, pb.StartWeightUpdateResponse)

    async def UpdateWeights(self, request: pb.UpdateWeightsRequest, context: Context) -> pb.UpdateWeightsResponse:
        """See the proto."""
        offer = offer_from_pb(request.offer) if request.HasField("offer") else None
        if not request.source_address and (offer is None or offer.transport == "stream"):
            raise InvalidInputError("source_address is empty: where are the weights?", field="source_address")

        async def work(ctx: Mutation) -> pb.UpdateWeightsResponse:
            source = GrpcWeightSource(request.source_address, options=self._options)
            try:
                byte_count = await self._core.update_weights(request.sync_id, source, ctx, offer)
            finally:
                await source.close()
            return pb.UpdateWeightsResponse(context=await self._respond(), received_size_bytes=byte_count)

        return await self._gate.mutate("UpdateWeights", request.context, context, work)

    async def FinishWeightUpdate(
        self, request: pb.FinishWeightUpdateRequest, context: Context
    ) -> pb.FinishWeightUpdateResponse:
        """See the proto."""

        async def work(ctx: Mutation) -> pb.FinishWeightUpdateResponse:
            version = await self._core.finish_weight_update(request.sync_id, ctx)
            return pb.FinishWeightUpdateResponse(context=self._gate.respond(version), version=version_to_pb(version))

        return await self._gate.mutate("FinishWeightUpdate", request.context, context, work)

    async def _plain(
        self,
        method: str,
        request: Any,
        context: Context,
        do: Callable[[Mutation], Awaitable[None]],
        response: Callable[..., Response],
    ) -> Response:
        """A mutation that answers with its context only."""

        async def work(ctx: Mutation) -> Response:
            await do(ctx)
            return response(context=await self._respond())

        return await self._gate.mutate(method, request.context, context, work)

    async def _respond(self) -> ResponseContext:
        return self._gate.respond((await self._core.status()).version)


def add_to_server(
    core: ServedRollout,
    server: grpc.aio.Server,
    gate: Gate,
    *,
    interval_tokens: int | None = None,
    options: RpcOptions | None = None,
) -> list[str]:
    """Serve a rollout core, and the weights that it holds; returns the full service names.

    Args:
        interval_tokens: Tokens of a sample between two messages: what is lost at most when this server
            dies. None: what the core's options say.
        options: Of the connections from which weights are pulled.
    """
    servicer = RolloutServicer(core, gate, interval_tokens, options)
    rollout_service_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, server)
    return [NAME, *weights_service.add_to_server(core.weight_source(), server, gate)]
