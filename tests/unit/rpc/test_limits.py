"""Case F1: messages above 4 MiB pass everywhere; one over the limit fails fast, once, and names the limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest

from argosy.api.common.v1 import payload_pb2, weights_pb2
from argosy.api.common.v1 import weights_service_pb2 as weights
from argosy.api.common.v1.weights_service_pb2_grpc import (
    WeightsServiceServicer,
    WeightsServiceStub,
    add_WeightsServiceServicer_to_server,
)
from argosy.api.reward.v1 import reward_service_pb2 as reward
from argosy.api.reward.v1.reward_service_pb2_grpc import (
    RewardServiceServicer,
    RewardServiceStub,
    add_RewardServiceServicer_to_server,
)
from argosy.api.trainer.v1 import objective_pb2
from argosy.api.trainer.v1 import trainer_service_pb2 as trainer
from argosy.api.trainer.v1.trainer_service_pb2_grpc import (
    TrainerServiceServicer,
    TrainerServiceStub,
    add_TrainerServiceServicer_to_server,
)
from argosy.rpc.channel import Caller
from argosy.rpc.errors import from_rpc_error
from argosy.rpc.options import MAX_MESSAGE_BYTES, RpcOptions
from argosy.types.errors import MessageTooLargeError

if TYPE_CHECKING:
    from argosy.api.common.v1.weights_service_pb2_grpc import WeightsServiceAsyncStub
    from argosy.api.reward.v1.reward_service_pb2_grpc import RewardServiceAsyncStub
    from argosy.api.trainer.v1.trainer_service_pb2_grpc import TrainerServiceAsyncStub

SIZES = [4_194_303, 4_194_305, 20_000_000]
SMALL = RpcOptions(max_message_bytes=1 << 20)


class Service(RewardServiceServicer, WeightsServiceServicer, TrainerServiceServicer):
    """Answers with as many bytes as it is asked for, and counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.received_bytes = 0

    async def Score(self, request: reward.ScoreRequest, context: Any) -> reward.ScoreResponse:
        self.calls += 1
        self.received_bytes += len(request.items[0].response_text)
        wanted = int(request.items[0].prompt_text)
        return reward.ScoreResponse(results=[reward.ScoreResult(failed=reward.Failed(message="x" * wanted))])

    async def StreamWeights(
        self, request: weights.StreamWeightsRequest, context: Any
    ) -> AsyncIterator[weights.StreamWeightsResponse]:
        self.calls += 1
        data = bytes(int(request.names[0]))
        yield weights.StreamWeightsResponse(chunk=weights_pb2.WeightChunk(data=data))

    async def Update(
        self, request_iterator: AsyncIterator[trainer.UpdateRequest], context: Any
    ) -> trainer.UpdateResponse:
        self.calls += 1
        async for message in request_iterator:
            self.received_bytes += len(message.payload.chunk.data)
        return trainer.UpdateResponse(result=objective_pb2.StepResult(step=1))


class Client:
    """The three ways of a payload: up in a request, down in a response, and either way in a stream."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.reward = cast("RewardServiceAsyncStub", RewardServiceStub(caller.channel))
        self.weights = cast("WeightsServiceAsyncStub", WeightsServiceStub(caller.channel))
        self.trainer = cast("TrainerServiceAsyncStub", TrainerServiceStub(caller.channel))

    async def score(self, *, up: int, down: int) -> int:
        item = reward.ScoreItem(prompt_text=str(down), response_text="x" * up)
        response = await self.caller.unary(
            self.reward.Score, lambda left_s: reward.ScoreRequest(items=[item]), deadline_s=60
        )
        return len(response.results[0].failed.message)

    async def stream_down(self, size: int) -> int:
        call = self.weights.StreamWeights(weights.StreamWeightsRequest(names=[str(size)]), timeout=60)
        try:
            return sum([len(item.chunk.data) async for item in call])
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    async def stream_up(self, size: int) -> int:
        def messages(left_s: float) -> Iterator[trainer.UpdateRequest]:
            chunk = payload_pb2.PayloadChunk(data=bytes(size))
            yield trainer.UpdateRequest(payload=payload_pb2.PayloadPart(chunk=chunk))

        response = await self.caller.upload(self.trainer.Update, messages, deadline_s=60)
        return response.result.step


@pytest.fixture
async def connect(serve: Any) -> AsyncIterator[Any]:
    callers: list[Caller] = []

    async def start(server_options: RpcOptions, client_options: RpcOptions) -> tuple[Service, Client]:
        service = Service()  # type: ignore[abstract]

        def add(server: grpc.aio.Server, gate: object) -> list[str]:
            add_RewardServiceServicer_to_server(service, server)
            add_WeightsServiceServicer_to_server(service, server)
            add_TrainerServiceServicer_to_server(service, server)
            return []

        server = await serve(add, options=server_options)
        callers.append(Caller(server.address, what="test-0", options=client_options))
        return service, Client(callers[-1])

    yield start
    for caller in callers:
        await caller.close()


@pytest.mark.parametrize("size", SIZES)
async def test_f1_large_messages_pass_up_down_and_in_streams_by_default(connect: Any, size: int) -> None:
    service, client = await connect(RpcOptions(), RpcOptions())
    assert await client.score(up=size, down=0) == 0
    assert service.received_bytes == size
    assert await client.score(up=0, down=size) == size
    assert await client.stream_down(size) == size
    assert await client.stream_up(size) == 1
    assert service.received_bytes == 2 * size


async def test_f1_a_request_over_the_limit_is_never_sent(connect: Any) -> None:
    service, client = await connect(SMALL, SMALL)
    with pytest.raises(MessageTooLargeError, match="message limit of 1048576 bytes") as caught:
        await client.score(up=1 << 20, down=0)
    assert caught.value.metadata["limit_bytes"] == "1048576"
    assert service.calls == 0


async def test_f1_a_response_over_the_limit_fails_once_and_names_the_limit(connect: Any) -> None:
    service, client = await connect(SMALL, SMALL)
    with pytest.raises(MessageTooLargeError, match=r"response of Score has .* message limit of 1048576 bytes"):
        await client.score(up=0, down=1 << 20)
    assert service.calls == 1


async def test_f1_stream_items_over_the_limit_fail_once_and_name_the_limit(connect: Any) -> None:
    service, client = await connect(SMALL, SMALL)
    with pytest.raises(MessageTooLargeError, match=r"response of StreamWeights has .* message limit of 1048576 bytes"):
        await client.stream_down(1 << 20)
    assert service.calls == 1
    with pytest.raises(MessageTooLargeError, match="1048576"):
        await client.stream_up(1 << 20)
    assert service.calls <= 2
    assert service.received_bytes == 0


async def test_f1_a_limit_that_differs_between_the_sides_is_reported_as_such_and_not_retried(connect: Any) -> None:
    service, client = await connect(RpcOptions(), SMALL)
    with pytest.raises(MessageTooLargeError, match="1048576"):
        await client.score(up=0, down=2 << 20)
    assert service.calls == 1
    service, client = await connect(SMALL, RpcOptions())
    with pytest.raises(MessageTooLargeError, match="1048576"):
        await client.score(up=2 << 20, down=0)
    assert service.calls == 0


def test_f1_both_sides_have_the_same_limits_in_both_directions() -> None:
    for arguments in (dict(RpcOptions().client()), dict(RpcOptions().server())):
        assert arguments["grpc.max_send_message_length"] == MAX_MESSAGE_BYTES
        assert arguments["grpc.max_receive_message_length"] == MAX_MESSAGE_BYTES
