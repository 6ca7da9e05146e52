"""The client of a reward server, in whatever language that is written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.api.reward.v1.reward_service_pb2_grpc import RewardServiceStub
from argosy.rpc.channel import Caller
from argosy.rpc.codec.common import read_context_to_pb, sample_id_from_pb
from argosy.rpc.codec.reward import capabilities_from_pb, item_to_pb, result_from_pb
from argosy.rpc.options import RpcOptions
from argosy.rpc.retry import NO_RETRY, RetryPolicy
from argosy.types.errors import ArgosyError, InternalError, InvalidInputError, MessageTooLargeError
from argosy.types.failures import failed
from argosy.types.ids import SampleId
from argosy.types.records import Failed, RewardCapabilities, ScoreRequest, ScoreResult

if TYPE_CHECKING:
    from argosy.api.reward.v1.reward_service_pb2_grpc import RewardServiceAsyncStub

_MAX_REQUEST_BYTES = 3 << 20
"""Items are split into requests of at most this size (a single larger item goes alone): a server in another language
takes 4 MiB unless it was told otherwise."""
_MAX_IN_FLIGHT = 4
"""Requests in flight at once for one `score` call."""
_CAPABILITIES_DEADLINE_S = 30.0


class RewardClient:
    """Implements `argosy.roles.reward.Reward` over gRPC."""

    def __init__(
        self,
        address: str,
        *,
        member_id: str = "reward",
        options: RpcOptions | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._caller = Caller(address, what=member_id, options=options, policy=policy)
        self._stub = cast("RewardServiceAsyncStub", RewardServiceStub(self._caller.channel))
        self._capabilities: RewardCapabilities | None = None

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        """One result per item, in the items' order; an item that the server left out is Failed("bad_return").

        Items that don't fit into one request go in several, split before the first is sent. Where some requests are
        answered and others fail, the items of the latter are Failed; raises where all fail, or where several items
        together are too large for the server and may be sent again in smaller parts.
        """
        if len({item.sample_id for item in items}) != len(items):
            raise InvalidInputError("a sample is in the batch twice", field="sample_id")
        end = asyncio.get_running_loop().time() + deadline_s
        capabilities = self._capabilities or await self._get_capabilities(deadline_s)
        room = asyncio.Semaphore(_MAX_IN_FLIGHT)

        async def send(batch: list[pb.ScoreItem]) -> pb.ScoreResponse:
            async with room:
                return await self._caller.unary(
                    self._stub.Score,
                    lambda left_s: pb.ScoreRequest(context=read_context_to_pb(deadline_s=left_s), items=batch),
                    deadline_s=end - asyncio.get_running_loop().time(),
                    policy=NO_RETRY if capabilities.repeat_forbidden else None,
                )

        messages, refused = _messages(items, capabilities)
        batches = list(_batches(messages, capabilities))
        tasks = [asyncio.ensure_future(send(batch)) for batch in batches]
        try:
            answers = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for task in tasks:
                task.cancel()
        results = refused
        errors: list[BaseException] = []
        for batch, answer in zip(batches, answers, strict=True):
            if isinstance(answer, BaseException):
                splits = isinstance(answer, MessageTooLargeError) and not capabilities.repeat_forbidden
                if not isinstance(answer, ArgosyError) or (splits and len(batch) > 1):
                    raise answer
                errors.append(answer)
                results += [ScoreResult(sample_id_from_pb(item.sample_id), failed(answer)) for item in batch]
            else:
                results += [result_from_pb(result) for result in answer.results]
        if errors and len(errors) == len(batches):
            raise errors[0]
        return self._matched(items, results)

    async def capabilities(self) -> RewardCapabilities:
        """Which data sources the server knows; asked anew each time."""
        return await self._get_capabilities(_CAPABILITIES_DEADLINE_S)

    async def close(self) -> None:
        """End the running calls and close the connection."""
        await self._caller.close()

    async def _get_capabilities(self, deadline_s: float) -> RewardCapabilities:
        response = await self._caller.unary(
            self._stub.GetCapabilities,
            lambda left_s: pb.GetCapabilitiesRequest(context=read_context_to_pb(deadline_s=left_s)),
            deadline_s=deadline_s,
        )
        self._capabilities = capabilities_from_pb(response)
        return self._capabilities

    def _matched(self, items: Sequence[ScoreRequest], results: Sequence[ScoreResult]) -> list[ScoreResult]:
        found: dict[SampleId, ScoreResult] = {}
        asked = {item.sample_id for item in items}
        for result in results:
            if result.sample_id not in asked or result.sample_id in found:
                fault = "twice" if result.sample_id in found else "without being asked"
                raise InternalError(f"{self._caller.what} judged sample {result.sample_id} {fault}")
            found[result.sample_id] = result
        missing = Failed("bad_return", f"{self._caller.what} gave no result for this sample")
        return [found.get(item.sample_id) or ScoreResult(item.sample_id, missing) for item in items]


def _messages(
    items: Sequence[ScoreRequest], capabilities: RewardCapabilities
) -> tuple[list[pb.ScoreItem], list[ScoreResult]]:
    """Items as they are sent, and results of those that can't be: a sample fails alone for what its own conversation
    holds (numbers that are not finite, half a character). Raises InvalidInputError if none can be sent."""
    messages: list[pb.ScoreItem] = []
    refused: list[ScoreResult] = []
    for item in items:
        try:
            messages.append(
                item_to_pb(item, with_ids=capabilities.needs_token_ids, with_messages=capabilities.needs_messages)
            )
        except (InvalidInputError, UnicodeEncodeError) as error:
            problem = InvalidInputError(f"sample {item.sample_id} can't be sent to the reward service: {error}")
            if len(refused) + 1 == len(items):
                raise problem from error
            refused.append(ScoreResult(item.sample_id, failed(problem)))
    return messages, refused


def _batches(messages: Sequence[pb.ScoreItem], capabilities: RewardCapabilities) -> Iterator[list[pb.ScoreItem]]:
    """Items in requests that the server takes."""
    batch: list[pb.ScoreItem] = []
    size_bytes = 0
    for message in messages:
        if batch and (
            len(batch) >= capabilities.max_batch_size or size_bytes + message.ByteSize() > _MAX_REQUEST_BYTES
        ):
            yield batch
            batch, size_bytes = [], 0
        batch.append(message)
        size_bytes += message.ByteSize()
    if batch:
        yield batch
