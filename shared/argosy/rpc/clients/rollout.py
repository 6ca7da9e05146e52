"""A rollout server in another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from argosy.api.rollout.v1 import rollout_service_pb2 as pb
from argosy.api.rollout.v1.rollout_service_pb2_grpc import RolloutServiceStub
from argosy.roles.weights import WeightSource
from argosy.rpc.channel import Caller
from argosy.rpc.clients.generate_stream import Batch, GenerateStream
from argosy.rpc.clients.weights import GrpcWeightSource
from argosy.rpc.codec.common import manifest_to_pb, mutation_to_pb, offer_to_pb, version_from_pb
from argosy.rpc.codec.rollout import PAUSE_MODES, parse_key, rollout_status_from_pb
from argosy.rpc.options import RpcOptions
from argosy.rpc.retry import RetryPolicy
from argosy.types.errors import DeadlineError, InvalidInputError
from argosy.types.ids import PolicyVersion
from argosy.types.records import (
    NO_LEADER,
    Completion,
    GenerateRequest,
    Leader,
    Mutation,
    RolloutStatus,
    TokenRun,
    TransferOffer,
    WeightsManifest,
)

if TYPE_CHECKING:
    from argosy.api.common.v1.context_pb2 import RequestContext
    from argosy.api.rollout.v1.rollout_service_pb2_grpc import RolloutServiceAsyncStub

Result = TypeVar("Result")

STATUS_DEADLINE_S = 10.0
"""For a status, all tries included: a server that can't tell within this is as good as lost."""


class RolloutClient:
    """Implements `argosy.roles.rollout.Rollout` over gRPC."""

    def __init__(
        self,
        address: str,
        *,
        member_id: str = "rollout",
        options: RpcOptions | None = None,
        policy: RetryPolicy | None = None,
        leader: Leader = NO_LEADER,
    ) -> None:
        """`leader`: Who asks for samples; the server refuses a leader whose term is over. Mutations name their own."""
        self.address = address
        self._leader = leader
        self._caller = Caller(address, what=member_id, options=options, policy=policy)
        self._stub = cast("RolloutServiceAsyncStub", RolloutServiceStub(self._caller.channel))
        self._stream: GenerateStream | None = None
        self._streams: set[GenerateStream] = set()
        """Those whose reader still runs, the current one among them."""

    async def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        deadline_s: float,
        on_run: Callable[[TokenRun], None] | None = None,
    ) -> AsyncIterator[Completion]:
        """As the role says. When the server is lost in the middle, each unfinished sample is yielded with
        FinishReason.FAILED and the tokens that had come, and UnavailableError is raised after the last.
        """
        if not requests:
            return
        batch = Batch(requests, on_run)
        end = asyncio.get_running_loop().time() + deadline_s
        stream = self._open_stream()
        try:
            await self._in_time(stream.add(batch, deadline_s), batch, end)
            for _ in range(len(requests) + 1):
                yield await self._next(batch, end)
                if not batch.waiting and batch.events.empty():
                    return
        finally:
            stream.leave(batch)

    async def _next(self, batch: Batch, end: float) -> Completion:
        event = await self._in_time(batch.events.get(), batch, end)
        if isinstance(event, Completion):
            return event
        raise event

    async def _in_time(self, work: Awaitable[Result], batch: Batch, end: float) -> Result:
        try:
            return await asyncio.wait_for(work, max(end - asyncio.get_running_loop().time(), 0))
        except TimeoutError as error:
            raise DeadlineError(
                f"{self._caller.what}: {len(batch.waiting)} samples were not finished within the deadline",
                unfinished_count=str(len(batch.waiting)),
            ) from error

    def _open_stream(self) -> GenerateStream:
        if self._stream is None or self._stream.ended:
            self._stream = GenerateStream(self._stub.Generate, self._caller.what, self._streams.discard, self._leader)
            self._streams.add(self._stream)
        return self._stream

    async def abort(self, keys: Sequence[str] | None, ctx: Mutation) -> int:
        """As the role says."""
        named = [parse_key(key) for key in keys or ()]
        response = await self._caller.unary(
            self._stub.Abort,
            lambda left_s: pb.AbortRequest(context=_context(ctx, left_s), keys=named, all=keys is None),
            deadline_s=ctx.deadline_s,
        )
        return response.aborted_count

    async def pause(self, mode: str, ctx: Mutation) -> None:
        """As the role says."""
        if mode not in PAUSE_MODES:
            raise InvalidInputError(f"a pause's mode is one of {sorted(PAUSE_MODES)}, got {mode!r}", field="mode")
        await self._caller.unary(
            self._stub.Pause,
            lambda left_s: pb.PauseRequest(context=_context(ctx, left_s), mode=PAUSE_MODES[mode]),
            deadline_s=ctx.deadline_s,
        )

    async def resume(self, ctx: Mutation) -> None:
        """As the role says."""
        await self._caller.unary(
            self._stub.Resume, lambda left_s: pb.ResumeRequest(context=_context(ctx, left_s)), deadline_s=ctx.deadline_s
        )

    async def drain(self, ctx: Mutation) -> None:
        """As the role says."""
        await self._caller.unary(
            self._stub.Drain, lambda left_s: pb.DrainRequest(context=_context(ctx, left_s)), deadline_s=ctx.deadline_s
        )

    async def sleep(self, level: int, ctx: Mutation) -> None:
        """As the role says."""
        await self._caller.unary(
            self._stub.Sleep,
            lambda left_s: pb.SleepRequest(context=_context(ctx, left_s), level=level),
            deadline_s=ctx.deadline_s,
        )

    async def wake(self, ctx: Mutation) -> None:
        """As the role says."""
        await self._caller.unary(
            self._stub.Wake, lambda left_s: pb.WakeRequest(context=_context(ctx, left_s)), deadline_s=ctx.deadline_s
        )

    async def status(self) -> RolloutStatus:
        """As the role says."""
        response = await self._caller.unary(
            self._stub.GetStatus, lambda left_s: pb.GetStatusRequest(), deadline_s=STATUS_DEADLINE_S
        )
        return rollout_status_from_pb(response)

    async def init_weight_transfer(self, transport: str, ctx: Mutation) -> None:
        """As the role says."""
        await self._caller.unary(
            self._stub.InitWeightTransfer,
            lambda left_s: pb.InitWeightTransferRequest(context=_context(ctx, left_s), transport=transport),
            deadline_s=ctx.deadline_s,
        )

    async def start_weight_update(self, sync_id: str, manifest: WeightsManifest, ctx: Mutation) -> None:
        """As the role says."""
        message = manifest_to_pb(manifest)
        await self._caller.unary(
            self._stub.StartWeightUpdate,
            lambda left_s: pb.StartWeightUpdateRequest(
                context=_context(ctx, left_s), sync_id=sync_id, manifest=message
            ),
            deadline_s=ctx.deadline_s,
        )

    async def update_weights(
        self, sync_id: str, source: WeightSource, ctx: Mutation, offer: TransferOffer | None = None
    ) -> int:
        """As the role says; the server itself fetches from the source's address, or by the offer."""
        pulls = offer is None or offer.transport == "stream"
        if pulls and not source.address:
            raise InvalidInputError(
                "the weights lie in this process, where the server can't fetch them: give a source with an address",
                field="source.address",
            )
        response = await self._caller.unary(
            self._stub.UpdateWeights,
            lambda left_s: pb.UpdateWeightsRequest(
                context=_context(ctx, left_s),
                sync_id=sync_id,
                source_address=source.address,
                offer=None if offer is None else offer_to_pb(offer),
            ),
            deadline_s=ctx.deadline_s,
        )
        return int(response.received_size_bytes)

    async def finish_weight_update(self, sync_id: str, ctx: Mutation) -> PolicyVersion:
        """As the role says."""
        response = await self._caller.unary(
            self._stub.FinishWeightUpdate,
            lambda left_s: pb.FinishWeightUpdateRequest(context=_context(ctx, left_s), sync_id=sync_id),
            deadline_s=ctx.deadline_s,
        )
        return version_from_pb(response.version)

    def weight_source(self) -> GrpcWeightSource:
        """The weights that the server serves, for another one to fetch."""
        return GrpcWeightSource(self.address, caller=self._caller)

    async def close(self) -> None:
        """End what runs and the connection."""
        for stream in list(self._streams):
            await stream.close()
        await self._caller.close()


def _context(ctx: Mutation, left_s: float) -> RequestContext:
    return mutation_to_pb(ctx, deadline_s=left_s)
