from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry import trace
from opentelemetry.instrumentation.grpc import aio_server_interceptor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.api.reward.v1.reward_service_pb2_grpc import (
    RewardServiceServicer,
    RewardServiceStub,
    add_RewardServiceServicer_to_server,
)
from argosy.rpc.channel import Caller, open_channel
from argosy.rpc.options import RpcOptions
from argosy.rpc.retry import NO_RETRY
from argosy.rpc.server import NOT_SERVING, SERVING, RpcServer
from argosy.types.errors import OverloadedError, StateError, UnavailableError
from support.freezing import freeze

if TYPE_CHECKING:
    from argosy.api.reward.v1.reward_service_pb2_grpc import RewardServiceAsyncStub

NAME = "argosy.api.reward.v1.RewardService"


class Slow(RewardServiceServicer):
    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        self.began.set()
        try:
            await asyncio.sleep(float(request.items[0].prompt_text))
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return pb.ScoreResponse(scored_count=1)

    async def GetCapabilities(self, request: pb.GetCapabilitiesRequest, context: Any) -> pb.GetCapabilitiesResponse:
        raise StateError("not now")


def score(seconds: float) -> pb.ScoreRequest:
    return pb.ScoreRequest(items=[pb.ScoreItem(prompt_text=str(seconds))])


def stub_of(channel: grpc.aio.Channel) -> RewardServiceAsyncStub:
    return cast("RewardServiceAsyncStub", RewardServiceStub(channel))


async def health_of(channel: grpc.aio.Channel, name: str = "") -> Any:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)).status


async def test_health_says_not_serving_until_the_services_are_there_and_while_stopping() -> None:
    server = RpcServer.listen("127.0.0.1")
    await server.start()
    channel = open_channel(server.address)
    assert await health_of(channel) == NOT_SERVING
    service = Slow()
    add_RewardServiceServicer_to_server(service, server.server)  # after start: a core may take minutes to build
    await server.serve([NAME])
    assert await health_of(channel) == SERVING
    assert await health_of(channel, NAME) == SERVING
    await server.set_serving(False)
    assert await health_of(channel, NAME) == NOT_SERVING
    await server.set_serving(True)

    call = asyncio.ensure_future(stub_of(channel).Score(score(0.3)))
    await service.began.wait()
    stopping = asyncio.create_task(server.stop(5))
    assert (await call).scored_count == 1  # the grace lets it finish
    await stopping
    await channel.close()


async def test_reflection_names_the_services_and_gives_their_files(serve: Any) -> None:
    def add(server: grpc.aio.Server, gate: object) -> list[str]:
        add_RewardServiceServicer_to_server(Slow(), server)
        return [NAME]

    server = await serve(add)
    channel = open_channel(server.address)
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]

    async def ask() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        yield reflection_pb2.ServerReflectionRequest(file_containing_symbol=NAME)

    answers = [answer async for answer in stub.ServerReflectionInfo(ask(), timeout=10)]
    names = {service.name for service in answers[0].list_services_response.service}
    assert names == {NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert answers[1].file_descriptor_response.file_descriptor_proto
    await channel.close()


async def test_a_taken_port_is_one_clear_error() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(StateError, match=f"can't listen on 127.0.0.1:{port}.*or 0 for a free one"):
            RpcServer.listen("127.0.0.1", port)


async def test_two_of_our_servers_never_share_a_port() -> None:
    first = RpcServer.listen("127.0.0.1")
    await first.start()
    with pytest.raises(StateError, match="taken"):
        RpcServer.listen("127.0.0.1", first.port)
    await first.stop(0)


async def test_deadline_and_cancellation_reach_the_handler(serve: Any) -> None:
    services: list[Slow] = []

    def add(server: grpc.aio.Server, gate: object) -> list[str]:
        services.append(Slow())
        add_RewardServiceServicer_to_server(services[-1], server)
        return [NAME]

    server = await serve(add)
    channel = open_channel(server.address)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub_of(channel).Score(score(30), timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(services[0].cancelled.wait(), 5)
    services[0].cancelled.clear()
    services[0].began.clear()
    call = stub_of(channel).Score(score(30))
    await services[0].began.wait()
    call.cancel()
    await asyncio.wait_for(services[0].cancelled.wait(), 5)
    await channel.close()


async def test_a_server_that_comes_back_is_found_again() -> None:
    server = RpcServer.listen("127.0.0.1")
    add_RewardServiceServicer_to_server(Slow(), server.server)
    await server.start()
    caller = Caller(server.address)
    stub = stub_of(caller.channel)
    assert (await caller.unary(stub.Score, lambda left_s: score(0), deadline_s=10)).scored_count == 1
    await server.stop(0)
    with pytest.raises(UnavailableError):
        await caller.unary(stub.Score, lambda left_s: score(0), deadline_s=10)
    again = RpcServer.listen("127.0.0.1", server.port)
    add_RewardServiceServicer_to_server(Slow(), again.server)
    await again.start()
    assert (await caller.unary(stub.Score, lambda left_s: score(0), deadline_s=10)).scored_count == 1
    await caller.close()
    await again.stop(0)


async def test_closing_a_channel_is_no_cancellation_of_those_who_wait_on_it(serve: Any) -> None:
    service = Slow()

    def add(server: grpc.aio.Server, gate: object) -> list[str]:
        add_RewardServiceServicer_to_server(service, server)
        return [NAME]

    server = await serve(add)
    caller = Caller(server.address, what="reward-0")
    stub = stub_of(caller.channel)

    async def call() -> pb.ScoreResponse:
        return await caller.unary(stub.Score, lambda left_s: score(30), deadline_s=2)

    waiting = asyncio.create_task(call())
    await service.began.wait()
    await caller.close()
    with pytest.raises(UnavailableError, match=r"reward-0 at .*: the connection was closed here"):
        await waiting
    with pytest.raises(UnavailableError, match="closed here"):
        await call()


async def test_a_cancelled_caller_stays_cancelled(serve: Any) -> None:
    service = Slow()

    def add(server: grpc.aio.Server, gate: object) -> list[str]:
        add_RewardServiceServicer_to_server(service, server)
        return [NAME]

    server = await serve(add)
    caller = Caller(server.address)
    waiting = asyncio.create_task(caller.unary(stub_of(caller.channel).Score, lambda left_s: score(30), deadline_s=60))
    await service.began.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(service.cancelled.wait(), 5)
    await caller.close()


async def test_more_calls_than_a_server_takes_are_overload(serve: Any) -> None:
    service = Slow()

    def add(server: grpc.aio.Server, gate: object) -> list[str]:
        add_RewardServiceServicer_to_server(service, server)
        return [NAME]

    server = await serve(add, options=RpcOptions(max_concurrent_calls=1))
    caller = Caller(server.address, policy=NO_RETRY)
    stub = stub_of(caller.channel)
    first = asyncio.ensure_future(stub.Score(score(0.5)))
    await service.began.wait()
    with pytest.raises(OverloadedError):
        await caller.unary(stub.Score, lambda left_s: score(0), deadline_s=5)
    assert (await first).scored_count == 1
    assert (await caller.unary(stub.Score, lambda left_s: score(0), deadline_s=5)).scored_count == 1
    await caller.close()


async def test_a_proxy_in_the_environment_is_not_used(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:1")
    server = await serve(lambda server, gate: [])
    channel = open_channel(server.address)
    assert await health_of(channel) == SERVING
    await channel.close()


async def test_the_span_of_a_failed_call_has_an_error_status(serve: Any) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    server = RpcServer.listen("127.0.0.1", interceptors=[aio_server_interceptor(tracer_provider=provider)])
    add_RewardServiceServicer_to_server(Slow(), server.server)
    await server.start()
    channel = open_channel(server.address)
    with pytest.raises(grpc.aio.AioRpcError, match="not now"):
        await stub_of(channel).GetCapabilities(pb.GetCapabilitiesRequest())
    await stub_of(channel).Score(score(0))
    await channel.close()
    await server.stop(1)
    failed, good = exporter.get_finished_spans()
    assert failed.name.endswith("GetCapabilities")
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert good.status.status_code is not trace.StatusCode.ERROR


SERVER_PROGRAM = """
import asyncio
from argosy.rpc.server import RpcServer

async def main():
    server = RpcServer.listen("127.0.0.1")
    await server.start()
    print(server.port, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_frozen_peer_is_found_by_ping_long_before_the_deadline() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER_PROGRAM, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int(await asyncio.wait_for(process.stdout.readline(), 30))
        channel = open_channel(f"127.0.0.1:{port}", RpcOptions(keepalive_time_s=1, keepalive_timeout_s=1))
        assert await health_of(channel) == NOT_SERVING
        stub: Any = health_pb2_grpc.HealthStub(channel)
        await asyncio.to_thread(freeze, process.pid)
        began = asyncio.get_running_loop().time()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert asyncio.get_running_loop().time() - began < 15
        await channel.close()
    finally:
        process.kill()
        await process.wait()
