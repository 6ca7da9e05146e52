"""The trainer of a policy, in another process."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from argosy.api.trainer.v1 import trainer_service_pb2 as pb
from argosy.rpc.channel import iter_async
from argosy.rpc.chunking import batch_parts, check_columns, collect_batch, only
from argosy.rpc.clients.training import TrainingClient, context_to_pb
from argosy.rpc.clients.weights import GrpcWeightSource
from argosy.rpc.codec.common import manifest_from_pb, offer_from_pb, read_context_to_pb
from argosy.rpc.codec.trainer import weights_form_to_pb
from argosy.rpc.options import RpcOptions
from argosy.rpc.retry import RetryPolicy
from argosy.types.batch import TrajectoryBatch
from argosy.types.records import Mutation, TransferOffer, WeightsForm, WeightsManifest

if TYPE_CHECKING:
    from argosy.api.common.v1.payload_pb2 import PayloadPart


class PolicyClient(TrainingClient):
    """Implements `argosy.roles.policy.Policy` over gRPC."""

    def __init__(
        self,
        address: str,
        *,
        member_id: str = "trainer",
        options: RpcOptions | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        super().__init__(address, member_id=member_id, options=options, policy=policy)
        self._source = GrpcWeightSource(address, caller=self._caller)

    async def compute_log_probs(
        self, batch: TrajectoryBatch, columns: Sequence[str], *, temperature: float, deadline_s: float
    ) -> TrajectoryBatch:
        """As the role says. CorruptDataError on an answer for other samples."""
        sent = only(batch, "prompt_ids", "response_ids", "response_mask")

        def messages(left_s: float) -> Iterator[pb.ComputeLogProbsRequest]:
            start = pb.ComputeLogProbsStart(
                context=read_context_to_pb(deadline_s=left_s), columns=columns, temperature=temperature
            )
            yield pb.ComputeLogProbsRequest(start=start)
            for part in batch_parts(sent):
                yield pb.ComputeLogProbsRequest(payload=part)

        async def attempt(timeout_s: float, left_s: float) -> TrajectoryBatch:
            call = self._stub.ComputeLogProbs(iter_async(messages(left_s)), timeout=timeout_s)
            try:
                return await collect_batch(_payloads(call))
            finally:
                call.cancel()  # nothing happens if it has ended

        answer = await self._caller.retry(attempt, deadline_s=deadline_s)
        check_columns(batch, answer, columns, self._caller.what)
        return answer

    async def publish_weights(
        self, lineage: str, step: int, ctx: Mutation, *, form: WeightsForm = WeightsForm.MERGED
    ) -> WeightsManifest:
        """As the role says."""
        response = await self._caller.unary(
            self._stub.PublishWeights,
            lambda left_s: pb.PublishWeightsRequest(
                context=context_to_pb(ctx, left_s), lineage=lineage, step=step, form=weights_form_to_pb(form)
            ),
            deadline_s=ctx.deadline_s,
        )
        return manifest_from_pb(response.manifest)

    async def open_transfer(
        self, transport: str, sync_id: str, receiver_count: int, ctx: Mutation
    ) -> tuple[TransferOffer, ...]:
        """As the role says. Endpoints without a host get the host by which this client reaches the trainer."""
        response = await self._caller.unary(
            self._stub.OpenTransfer,
            lambda left_s: pb.OpenTransferRequest(
                context=context_to_pb(ctx, left_s),
                transport=transport,
                sync_id=sync_id,
                receiver_count=receiver_count,
            ),
            deadline_s=ctx.deadline_s,
        )
        host = self._source.address.rpartition(":")[0]
        offers = (offer_from_pb(message) for message in response.offers)
        return tuple(
            replace(offer, endpoint=host + offer.endpoint) if offer.endpoint.startswith(":") else offer
            for offer in offers
        )

    async def close_transfer(self, sync_id: str, ctx: Mutation) -> None:
        """As the role says."""
        await self._caller.unary(
            self._stub.CloseTransfer,
            lambda left_s: pb.CloseTransferRequest(context=context_to_pb(ctx, left_s), sync_id=sync_id),
            deadline_s=ctx.deadline_s,
        )

    def weight_source(self) -> GrpcWeightSource:
        """The trainer's WeightsService."""
        return self._source


async def _payloads(call: AsyncIterable[pb.ComputeLogProbsResponse]) -> AsyncIterator[PayloadPart]:
    async for response in call:
        yield response.payload
