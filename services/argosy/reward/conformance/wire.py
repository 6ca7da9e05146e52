"""The server as the checks see it: raw messages, so that nothing is mended on the way."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import grpc

from argosy.api.common.v1 import context_pb2
from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.api.reward.v1.reward_service_pb2_grpc import RewardServiceStub
from argosy.reward.conformance.findings import CheckError
from argosy.reward.conformance.samples import SampleMaker
from argosy.rpc.channel import open_channel
from argosy.rpc.codec.common import duration_to_pb, sample_id_from_pb
from argosy.types.ids import SampleId

if TYPE_CHECKING:
    from argosy.api.reward.v1.reward_service_pb2_grpc import RewardServiceAsyncStub

SCORE = "/argosy.api.reward.v1.RewardService/Score"


class Outcome:
    """One outcome as the server gave it, without its sample.

    Equal to another that differs by no more than a score's rounding: a model's sums depend a little on what else is in
    the batch.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, result: pb.ScoreResult) -> None:
        self._result = pb.ScoreResult()
        self._result.CopyFrom(result)
        self._result.ClearField("sample_id")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Outcome):
            return NotImplemented
        first, second = self._result, other._result
        if all(one.WhichOneof("outcome") == "scored" and one.scored.HasField("score") for one in (first, second)):
            if not math.isclose(first.scored.score, second.scored.score, rel_tol=1e-3, abs_tol=1e-4):
                return False
            first = pb.ScoreResult()
            first.CopyFrom(self._result)
            first.scored.score = second.scored.score
        return first == second

    def __str__(self) -> str:
        return shown(self._result)


Outcomes = Mapping[SampleId, Outcome]
"""Sample → its outcome."""


class Wire:
    """One server. `samples` is there once its capabilities are known."""

    samples: SampleMaker
    comparable: bool = True
    """Whether outcomes of two calls may be compared: not if repeats are forbidden, or outcomes were seen to vary."""

    def __init__(self, address: str, *, timeout_s: float) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.channel = open_channel(address)
        self._stub = cast("RewardServiceAsyncStub", RewardServiceStub(self.channel))

    async def connect(self) -> None:
        """Wait for a connection, for the timeout at most."""
        try:
            await asyncio.wait_for(self.channel.channel_ready(), self.timeout_s)
        except TimeoutError:
            state = self.channel.get_state().name.lower().replace("_", " ")
            raise CheckError(
                f"no gRPC server answered at {self.address} within {self.timeout_s:g} s (the connection: {state})"
            ) from None

    async def capabilities(self) -> pb.GetCapabilitiesResponse:
        """Ask once."""
        return await self._stub.GetCapabilities(pb.GetCapabilitiesRequest(), timeout=self.timeout_s)

    async def score(
        self, items: Sequence[pb.ScoreItem], *, timeout_s: float | None = None, told_deadline_s: float | None = None
    ) -> pb.ScoreResponse:
        """One call. `told_deadline_s` is what the request itself says to have left; None: nothing."""
        request = pb.ScoreRequest(items=items)
        if told_deadline_s is not None:
            request.context.CopyFrom(context_pb2.RequestContext(deadline=duration_to_pb(told_deadline_s)))
        return await self._stub.Score(request, timeout=timeout_s or self.timeout_s)

    async def score_bytes(self, request: bytes) -> pb.ScoreResponse:
        """One call with a request that no generated code would make."""
        method = self.channel.unary_unary(SCORE, lambda data: data, pb.ScoreResponse.FromString)
        return await method(request, timeout=self.timeout_s)

    async def outcomes(self, items: Sequence[pb.ScoreItem]) -> Outcomes:
        """Outcomes of one call by sample id; the last of several for one sample."""
        return by_id(await self.score(items))

    async def refusal(self, items: Sequence[pb.ScoreItem]) -> grpc.aio.AioRpcError | None:
        """The error that a call ends with; None if it is answered."""
        try:
            await self.score(items)
        except grpc.aio.AioRpcError as error:
            return error
        return None

    async def close(self) -> None:
        """End the connection."""
        await self.channel.close()


def by_id(response: pb.ScoreResponse) -> Outcomes:
    """The outcomes by sample id."""
    return {sample_id_from_pb(result.sample_id): Outcome(result) for result in response.results}


def shown(result: pb.ScoreResult) -> str:
    """An outcome for people, in a line."""
    kind = result.WhichOneof("outcome")
    if kind is None:
        return "no outcome"
    text = str(getattr(result, kind)).replace("\n", " ").strip()
    return f"{kind}({text[:200]})"
