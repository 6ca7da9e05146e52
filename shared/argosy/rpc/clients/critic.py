"""The trainer of a critic, in another process."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import TYPE_CHECKING

from argosy.api.trainer.v1 import trainer_service_pb2 as pb
from argosy.rpc.channel import iter_async
from argosy.rpc.chunking import batch_parts, check_columns, collect_batch, only
from argosy.rpc.clients.training import TrainingClient
from argosy.rpc.codec.common import read_context_to_pb
from argosy.types.batch import TrajectoryBatch

if TYPE_CHECKING:
    from argosy.api.common.v1.payload_pb2 import PayloadPart


class CriticClient(TrainingClient):
    """Implements `argosy.roles.policy.Critic` over gRPC."""

    async def compute_values(self, batch: TrajectoryBatch, *, deadline_s: float) -> TrajectoryBatch:
        """As the role says. CorruptDataError on an answer for other samples."""
        sent = only(batch, "prompt_ids", "response_ids", "response_mask")

        def messages(left_s: float) -> Iterator[pb.ComputeValuesRequest]:
            yield pb.ComputeValuesRequest(start=pb.ComputeValuesStart(context=read_context_to_pb(deadline_s=left_s)))
            for part in batch_parts(sent):
                yield pb.ComputeValuesRequest(payload=part)

        async def attempt(timeout_s: float, left_s: float) -> TrajectoryBatch:
            call = self._stub.ComputeValues(iter_async(messages(left_s)), timeout=timeout_s)
            try:
                return await collect_batch(_payloads(call))
            finally:
                call.cancel()  # nothing happens if it has ended

        answer = await self._caller.retry(attempt, deadline_s=deadline_s)
        check_columns(batch, answer, ["values"], self._caller.what)
        return answer


async def _payloads(call: AsyncIterable[pb.ComputeValuesResponse]) -> AsyncIterator[PayloadPart]:
    async for response in call:
        yield response.payload
