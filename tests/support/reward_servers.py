"""Little reward servers as a stranger might write them: an honest one, and one for each fault."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from argosy.api.common.v1 import values_pb2
from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.api.reward.v1 import reward_service_pb2_grpc

Call = grpc.aio.ServicerContext[Any, Any]
SERVICE = "argosy.api.reward.v1.RewardService"


class Honest(reward_service_pb2_grpc.RewardServiceServicer):
    """Keeps the contract: the last word of the response, against the truth."""

    limit = 8
    receive_bytes = 64 << 20
    has_health = True
    has_reflection = True
    needs_token_ids = False
    repeat_forbidden = False
    sources: tuple[str, ...] = ("toy", "sums/*")

    async def GetCapabilities(self, request: pb.GetCapabilitiesRequest, context: Call) -> pb.GetCapabilitiesResponse:
        return pb.GetCapabilitiesResponse(
            data_sources=self.sources,
            max_batch_size=self.limit,
            needs_token_ids=self.needs_token_ids,
            repeat_forbidden=self.repeat_forbidden,
            name="honest",
            version="1",
        )

    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        if len(request.items) > self.limit:
            await self.refuse(context)
        return self.response([self.judge(item) for item in request.items])

    async def refuse(self, context: Call) -> None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"at most {self.limit} items")

    def response(self, results: list[pb.ScoreResult]) -> pb.ScoreResponse:
        kinds = [result.WhichOneof("outcome") for result in results]
        random.shuffle(results)
        counts = {f"{kind}_count": kinds.count(kind) for kind in ("scored", "abstained", "failed")}
        return pb.ScoreResponse(results=results, **counts)  # type: ignore[arg-type]

    def judge(self, item: pb.ScoreItem) -> pb.ScoreResult:
        result = pb.ScoreResult(sample_id=item.sample_id)
        if item.data_source != "toy" and not item.data_source.startswith("sums/"):
            result.failed.reason = "unknown_data_source"
            return result
        try:
            json.loads(item.extra_info_json or "{}")
        except (ValueError, RecursionError):
            result.failed.reason = "bad_extra_info"
            return result
        self.score(item, result)
        return result

    def score(self, item: pb.ScoreItem, result: pb.ScoreResult) -> None:
        words = item.response_text.split()
        right = bool(words) and words[-1] == item.ground_truth_text
        result.scored.score = float(right)
        result.scored.parts["acc"].flag = right
        result.scored.parts["pred"].text = words[-1][:50] if words else ""


class NoHealth(Honest):
    has_health = False


class NoReflection(Honest):
    has_reflection = False


class NoSources(Honest):
    sources = ()


class NegativeLimit(Honest):
    async def GetCapabilities(self, request: pb.GetCapabilitiesRequest, context: Call) -> pb.GetCapabilitiesResponse:
        return pb.GetCapabilitiesResponse(data_sources=["toy"], max_batch_size=-1, name="x")


class Nothing(Honest):
    """Answers with no results."""

    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        return pb.ScoreResponse()


class Hangs(Honest):
    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        await asyncio.sleep(600)
        return pb.ScoreResponse()


class ErrorForEmpty(Honest):
    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        if not request.items:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no items")
        return await super().Score(request, context)


class ForgetsTheLast(Honest):
    limit = 40

    def response(self, results: list[pb.ScoreResult]) -> pb.ScoreResponse:
        return super().response(results[:-1] if len(results) == self.limit else results)


class TakesTooMany(Honest):
    async def refuse(self, context: Call) -> None:
        return None


class WrongCode(Honest):
    async def refuse(self, context: Call) -> None:
        await context.abort(grpc.StatusCode.UNKNOWN, "too many")


class RoundsIds(Honest):
    """As JavaScript does with numbers above 2^53."""

    def judge(self, item: pb.ScoreItem) -> pb.ScoreResult:
        result = super().judge(item)
        result.sample_id.position = int(float(item.sample_id.position))
        return result


class ForgetsTheAttempt(Honest):
    def judge(self, item: pb.ScoreItem) -> pb.ScoreResult:
        result = super().judge(item)
        result.sample_id.attempt = 0
        return result


class Misplaces(Honest):
    """Sorts ids, but not the scores: each sample gets another's."""

    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        response = await super().Score(request, context)
        ids = sorted((item.sample_id for item in request.items), key=lambda sample: sample.position)
        judged = [self.judge(item) for item in request.items]
        for result, sample in zip(judged, ids, strict=True):
            result.sample_id.CopyFrom(sample)
        del response.results[:]
        response.results.extend(judged)
        return response


class Miscounts(Honest):
    def response(self, results: list[pb.ScoreResult]) -> pb.ScoreResponse:
        response = super().response(results)
        response.scored_count = 1000
        return response


class Infinite(Honest):
    def score(self, item: pb.ScoreItem, result: pb.ScoreResult) -> None:
        result.scored.score = float("inf")


class Scoreless(Honest):
    """proto3 without presence: a score of 0 is left out."""

    def score(self, item: pb.ScoreItem, result: pb.ScoreResult) -> None:
        super().score(item, result)
        if result.scored.score == 0:
            result.scored.ClearField("score")


class NeverScores(Honest):
    def score(self, item: pb.ScoreItem, result: pb.ScoreResult) -> None:
        result.abstained.reason = "no idea"


class ForgetsASource(Honest):
    sources = ("toy", "other")


class ErrorForUnknown(Honest):
    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        if any(item.data_source != "toy" and "/" not in item.data_source for item in request.items):
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such data source")
        return await super().Score(request, context)


class ZeroForUnknown(Honest):
    def judge(self, item: pb.ScoreItem) -> pb.ScoreResult:
        result = super().judge(item)
        if result.HasField("failed") and result.failed.reason == "unknown_data_source":
            result.scored.score = 0
        return result


class EmptyPart(Honest):
    def score(self, item: pb.ScoreItem, result: pb.ScoreResult) -> None:
        super().score(item, result)
        result.scored.parts["note"].CopyFrom(values_pb2.ScalarValue())


class ShortTokenScores(Honest):
    needs_token_ids = True

    def score(self, item: pb.ScoreItem, result: pb.ScoreResult) -> None:
        super().score(item, result)
        result.scored.token_scores.extend([0.5, 0.5])


class ErrorForSilence(Honest):
    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        if any(not item.response_text.strip() for item in request.items):
            raise IndexError("list index out of range")
        return await super().Score(request, context)


class CutsBytes(Honest):
    """Cuts the UTF-8 bytes of a text inside a character."""

    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        for item in request.items:
            item.response_text.encode()[:50].decode()
        return await super().Score(request, context)


class StopsAtNul(Honest):
    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        if any("\0" in item.response_text for item in request.items):
            raise ValueError("embedded null byte")
        return await super().Score(request, context)


class ErrorForLong(Honest):
    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        if any(len(item.response_text) > 100_000 for item in request.items):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "too long")
        return await super().Score(request, context)


class NeedsATruth(Honest):
    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        for item in request.items:
            if item.WhichOneof("ground_truth") is None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no ground truth")
        return await super().Score(request, context)


class NeedsExtraInfo(Honest):
    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        for item in request.items:
            if item.extra_info_json == "":
                raise ValueError("Expecting value: line 1 column 1")
        return await super().Score(request, context)


class TripsOverJson(Honest):
    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        for item in request.items:
            json.loads(item.extra_info_json or "{}")
        return await super().Score(request, context)


class RefusesLaterFields(Honest):
    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        if b"later" in request.SerializeToString():
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unknown field")
        return await super().Score(request, context)


class Dice(Honest):
    def score(self, item: pb.ScoreItem, result: pb.ScoreResult) -> None:
        result.scored.score = random.random()


class SmallMessages(Honest):
    receive_bytes = 4 << 20


class AnswersGarbage(Honest):
    """Its deserializer takes anything."""


class SharesItems(Honest):
    """Keeps the items of a call in a variable that all calls share."""

    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        if len(request.items) > self.limit:
            await self.refuse(context)
        self.items = list(request.items)
        await asyncio.sleep(0.005)
        return self.response([self.judge(item) for item in self.items])


class WrongDeadlineCode(Honest):
    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        if request.context.HasField("deadline"):
            await context.abort(grpc.StatusCode.INTERNAL, "out of time")
        return await super().Score(request, context)


class IgnoresDeadlines(Honest):
    """One worker that finishes all that was ever asked, in order."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        return await asyncio.shield(asyncio.ensure_future(self._in_turn(request, context)))

    async def _in_turn(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        async with self._turn:
            if any(len(item.response_text) > 20_000 and item.response_text.startswith("It") for item in request.items):
                await asyncio.sleep(0.7)
            return await super().Score(request, context)


class LeaksOnCancel(Honest):
    """Each cancelled call takes one of its ten places for ever; a call that ran out of time gives it back."""

    def __init__(self) -> None:
        self._places = 10

    async def Score(self, request: pb.ScoreRequest, context: Call) -> pb.ScoreResponse:
        while self._places == 0:  # noqa: ASYNC110 - as clumsy as its author
            await asyncio.sleep(0.01)
        self._places -= 1
        try:
            if len(request.items) > 4 and len(request.items[0].response_text) > 20_000:
                await asyncio.sleep(0.1)
            response = await super().Score(request, context)
        except asyncio.CancelledError:
            self._places += (context.time_remaining() or 0) < 0.01
            raise
        self._places += 1
        return response


FAULTS: dict[type[Honest], set[str]] = {
    NoSources: {"capabilities"},
    NegativeLimit: {"capabilities"},
    Nothing: {"batch_one"},
    Hangs: {"batch_one"},
    ErrorForEmpty: {"batch_empty"},
    ForgetsTheLast: {"batch_full"},
    TakesTooMany: {"batch_over_limit"},
    WrongCode: {"batch_over_limit"},
    RoundsIds: {"sample_ids"},
    ForgetsTheAttempt: {"sample_ids"},
    Misplaces: {"order"},
    Miscounts: {"counts"},
    Infinite: {"outcomes"},
    Scoreless: {"outcomes"},
    ForgetsASource: {"declared_sources"},
    ErrorForUnknown: {"unknown_source"},
    ZeroForUnknown: {"unknown_source"},
    EmptyPart: {"parts"},
    ShortTokenScores: {"token_scores"},
    ErrorForSilence: {"empty_response"},
    CutsBytes: {"unicode"},
    StopsAtNul: {"control_characters"},
    ErrorForLong: {"long_response"},
    NeedsATruth: {"ground_truth"},
    NeedsExtraInfo: {"extra_info"},
    TripsOverJson: {"broken_json"},
    RefusesLaterFields: {"unknown_fields"},
    Dice: {"same_twice"},
    SmallMessages: {"large_request"},
    AnswersGarbage: {"garbage"},
    SharesItems: {"concurrent"},
    WrongDeadlineCode: {"deadline"},
    IgnoresDeadlines: {"deadline", "cancelled"},
    LeaksOnCancel: {"cancelled"},
}
"""Server → the checks that must fail, and no others."""

WARNINGS: dict[type[Honest], set[str]] = {
    NoHealth: {"health"},
    NoReflection: {"reflection"},
    NeverScores: {"judges"},
}
"""Server → checks that must warn, besides `error_details`."""


@asynccontextmanager
async def serve(servicer: Honest) -> AsyncIterator[str]:
    """The address of a server on loopback."""
    limit = ("grpc.max_receive_message_length", servicer.receive_bytes)
    server = grpc.aio.server(options=[limit, ("grpc.so_reuseport", 0)])
    if isinstance(servicer, AnswersGarbage):
        server.add_generic_rpc_handlers((_Lenient(servicer),))
    else:
        reward_service_pb2_grpc.add_RewardServiceServicer_to_server(servicer, server)
    if servicer.has_health:
        checks = health.aio.HealthServicer()
        await checks.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    if servicer.has_reflection:
        reflection.enable_server_reflection([SERVICE, reflection.SERVICE_NAME], server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


class _Lenient(grpc.GenericRpcHandler):
    """Takes bytes that are no request for an empty one."""

    def __init__(self, servicer: Honest) -> None:
        self._servicer = servicer

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        if handler_call_details.method.endswith("/Score"):
            return grpc.unary_unary_rpc_method_handler(
                self._servicer.Score, _lenient, pb.ScoreResponse.SerializeToString
            )
        if handler_call_details.method.endswith("/GetCapabilities"):
            return grpc.unary_unary_rpc_method_handler(
                self._servicer.GetCapabilities,
                pb.GetCapabilitiesRequest.FromString,
                pb.GetCapabilitiesResponse.SerializeToString,
            )
        return None


def _lenient(data: bytes) -> pb.ScoreRequest:
    from google.protobuf.message import DecodeError

    try:
        return pb.ScoreRequest.FromString(data)
    except DecodeError:
        return pb.ScoreRequest()


def names() -> Iterator[str]:
    """Checks that some fault here fails or warns."""
    for found in (*FAULTS.values(), *WARNINGS.values()):
        yield from found
