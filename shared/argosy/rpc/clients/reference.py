"""The client of a reference server."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from argosy.api.common.v1 import payload_pb2
from argosy.api.reference.v1 import reference_service_pb2 as pb
from argosy.api.reference.v1.reference_service_pb2_grpc import ReferenceServiceStub
from argosy.rpc.channel import Caller, iter_async
from argosy.rpc.chunking import batch_parts, check_columns, collect_batch, only
from argosy.rpc.codec.common import read_context_to_pb
from argosy.rpc.options import RpcOptions
from argosy.rpc.retry import RetryPolicy
from argosy.types.batch import TrajectoryBatch

if TYPE_CHECKING:
    from argosy.api.reference.v1.reference_service_pb2_grpc import ReferenceServiceAsyncStub


class ReferenceClient:
    """Implements `argosy.roles.reference.Reference` over gRPC."""

    def __init__(
        self,
        address: str,
        *,
        member_id: str = "reference",
        options: RpcOptions | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._caller = Caller(address, what=member_id, options=options, policy=policy)
        self._stub = cast("ReferenceServiceAsyncStub", ReferenceServiceStub(self._caller.channel))

    async def compute_log_probs(
        self, batch: TrajectoryBatch, columns: Sequence[str], *, temperature: float, deadline_s: float
    ) -> TrajectoryBatch:
        """The same samples with response_ids and the named columns. CorruptDataError on an answer for other samples."""
        sent = only(batch, "prompt_ids", "response_ids", "response_mask")

        def messages(left_s: float) -> Iterator[pb.ComputeLogProbsRequest]:
            context = read_context_to_pb(deadline_s=left_s)
            start = pb.ComputeLogProbsStart(context=context, columns=columns, temperature=temperature)
            yield pb.ComputeLogProbsRequest(start=start)
            for part in batch_parts(sent):
                yield pb.ComputeLogProbsRequest(payload=part)

        async def attempt(timeout_s: float, left_s: float) -> TrajectoryBatch:
            call = self._stub.ComputeLogProbs(iter_async(messages(left_s)), timeout=timeout_s)
            try:
                return await collect_batch(_payloads(call))
            finally:
                call.cancel()

        result = await self._caller.retry(attempt, deadline_s=deadline_s)
        check_columns(batch, result, columns, self._caller.what)
        return result

    async def close(self) -> None:
        """End the running calls and close the connection."""
        await self._caller.close()


async def _payloads(
    responses: AsyncIterable[pb.ComputeLogProbsResponse],
) -> AsyncIterator[payload_pb2.PayloadPart]:
    async for response in responses:
        yield response.payload
