"""A Generate stream that breaks while callers wait to join it: nobody hangs, and nobody sees anything but its batch's
error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from argosy.rpc.clients.generate_stream import Batch, GenerateStream
from argosy.types.errors import UnavailableError
from argosy.types.ids import SampleId
from argosy.types.records import Completion, GenerateRequest, SamplingParams


class Call:
    """A call whose end the test decides."""

    def __init__(self, *, blocked: bool = False) -> None:
        self.dead = asyncio.Event()
        self._blocked = blocked

    async def write(self, message: object) -> None:
        if self._blocked:
            await asyncio.Event().wait()

    async def done_writing(self) -> None:
        return

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
