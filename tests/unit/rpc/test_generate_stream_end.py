"""A Generate stream that breaks: nobody who waits to join it hangs, each batch has its error, and no task is left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest

from argosy.api.rollout.v1.rollout_service_pb2_grpc import RolloutServiceStub
from argosy.rpc.channel import open_channel
from argosy.rpc.clients.generate_stream import Batch, GenerateStream
from argosy.rpc.gate import Gate
from argosy.rpc.server import RpcServer
from argosy.types.errors import UnavailableError
from argosy.types.ids import SampleId
from argosy.types.records import Completion, GenerateRequest, SamplingParams


class Call:
    """A call whose end the test decides."""

    def __init__(self, *, blocked: bool = False) -> None:
        self.dead = asyncio.Event()
        self._blocked = blocked
        self._sending: asyncio.Task[None] | None = None

    def __call__(self, requests: AsyncIterator[object]) -> Call:
        self._sending = asyncio.create_task(self._send(requests))
        return self

    async def _send(self, requests: AsyncIterator[object]) -> None:
        async for _ in requests:
            if self._blocked:
                await self.dead.wait()

    def cancel(self) -> None:
        self.dead.set()

    async def __aiter__(self) -> AsyncIterator[object]:
        await self.dead.wait()
        nothing: tuple[object, ...] = ()
        for response in nothing:
            yield response


def stream_on(call: Call) -> GenerateStream:
    return GenerateStream(cast(Any, call), "r0", lambda _: None)


def batch_of(index: int) -> Batch:
    return Batch([GenerateRequest(SampleId(0, index, 0), (1,), SamplingParams(4))])


def assert_failed(batch: Batch) -> None:
    assert isinstance(batch.events.get_nowait(), Completion)
    assert isinstance(batch.events.get_nowait(), UnavailableError)


async def test_stream_breaks_while_a_sample_waits_for_its_own_end() -> None:
    call = Call()
    stream = stream_on(call)
    await stream.add(batch_of(9), 10)
    first, again = batch_of(1), batch_of(1)
    await stream.add(first, 10)
    stream.leave(first)
    adding = asyncio.create_task(stream.add(again, 10))
    await asyncio.sleep(0.01)
    assert not adding.done()
    call.dead.set()
    await asyncio.wait_for(adding, 10)
    assert_failed(again)


async def test_stream_breaks_while_many_wait_for_room() -> None:
    call = Call(blocked=True)
    stream = stream_on(call)
    batches = [batch_of(index) for index in range(40)]
    adding = [asyncio.create_task(stream.add(batch, 10)) for batch in batches]
    await asyncio.sleep(0.01)
    assert sum(not task.done() for task in adding) > 1
    call.dead.set()
    await asyncio.wait_for(asyncio.gather(*adding), 10)
    for batch in batches:
        assert_failed(batch)


@pytest.mark.parametrize("traced", [False, True])
async def test_nothing_of_a_broken_stream_is_left(traced: bool) -> None:
    """With interceptors gRPC makes of what is written an iterator of its own, which would wait for ever."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    server = RpcServer.listen("127.0.0.1", gate=Gate("r0"))
    server.server.add_generic_rpc_handlers((Silent(),))
    await server.start()
    interceptors = [Passes()] if traced else []
    async with open_channel(server.address, interceptors=interceptors) as channel:
        stub: Any = RolloutServiceStub(channel)
        stream = GenerateStream(stub.Generate, "r0", lambda _: None)
        batch = batch_of(1)
        await stream.add(batch, 10)
        await asyncio.sleep(0.05)
        before = asyncio.all_tasks()
        await server.stop(0)
        event = await asyncio.wait_for(batch.events.get(), 10)
        assert isinstance(event, Completion)
        assert isinstance(batch.events.get_nowait(), UnavailableError)
        await asyncio.sleep(0.05)
        left = [task for task in before if not task.done() and "request" in str(task.get_coro())]
        assert not left
    del stream
    gc.collect()
    await asyncio.sleep(0.05)
    assert not complaints


class Silent(grpc.GenericRpcHandler):
    """Takes the stream, and never answers."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def wait(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        return grpc.stream_stream_rpc_method_handler(wait)


class Passes(grpc.aio.StreamStreamClientInterceptor):
    """Changes nothing, as one that traces."""

    async def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return await continuation(details, requests)
