"""Sessions that are begun, rewarded and named in odd ways; nothing is served here."""

from __future__ import annotations

import asyncio
import json
import math
import types
from typing import Any, cast

import pytest
from starlette.responses import JSONResponse

from argosy.config import Config
from argosy.controller.groups import Ticket
from argosy.controller.openai.desk import SessionDesk, read_reward
from argosy.controller.openai.errors import ApiError
from argosy.controller.openai.messages import read_messages
from argosy.controller.openai.parameters import parse_json
from argosy.controller.openai.routes import _task
from argosy.controller.openai.tasks import Task
from argosy.types.ids import GroupId
from argosy.types.records import Prompt


class Source:
    """One task, which takes a moment to come."""

    def __init__(self) -> None:
        self.open_tasks: dict[GroupId, Task] = {}
        self.come = asyncio.Event()

    async def task(self, key: str, data_source: str, wait_s: float) -> Task:
        await self.come.wait()
        group = GroupId(0, 0)
        if group not in self.open_tasks:
            self.open_tasks[group] = Task(key, Ticket(1, 0), Prompt(group, (), data_source, None), 4)
        return self.open_tasks[group]

    @property
    def names(self) -> list[str]:
        return [session.session_id for task in self.open_tasks.values() for session in task.sessions]


def desk_of(source: Source) -> SessionDesk:
    return SessionDesk(cast(Any, types.SimpleNamespace(config=Config(), count=lambda *_: None)), cast(Any, source))


async def test_a_session_is_begun_once_however_often_it_is_asked_for() -> None:
    source = Source()
    desk = desk_of(source)
    first = asyncio.create_task(desk.begin("s1", "group:g", "agent", {}, 5))
    calls = [asyncio.create_task(desk.for_call("s1", "group:g", 5)) for _ in range(3)]
    await asyncio.sleep(0.01)
    with pytest.raises(ApiError, match="has begun already"):
        await desk.begin("s1", "group:g", "agent", {}, 5)
    source.come.set()
    seats = await asyncio.gather(first, *calls)
    assert source.names == ["s1"]
    assert {id(seat) for seat in seats} == {id(desk.find("s1"))}


async def test_a_call_begins_the_session_whose_beginner_has_left() -> None:
    source = Source()
    desk = desk_of(source)
    first = asyncio.create_task(desk.begin("s1", "group:g", "agent", {}, 5))
    await asyncio.sleep(0)
    call = asyncio.create_task(desk.for_call("s1", "group:g", 5))
    await asyncio.sleep(0.01)
    first.cancel()
    source.come.set()
    assert (await call).session.session_id == "s1"
    assert source.names == ["s1"]


async def test_a_call_whose_client_leaves_ends() -> None:
    desk = desk_of(Source())
    call = asyncio.create_task(desk.for_call("s1", "group:g", 5))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_of_a_burst_as_many_sessions_begin_as_may_be_open() -> None:
    source = Source()
    desk = desk_of(source)
    desk._options = types.SimpleNamespace(max_sessions=2)  # type: ignore[assignment]
    burst = [asyncio.create_task(desk.begin(name, "group:g", "agent", {}, 5)) for name in "abc"]
    await asyncio.sleep(0.01)
    source.come.set()
    ends = await asyncio.gather(*burst, return_exceptions=True)
    assert source.names == ["a", "b"]
    assert isinstance(ends[2], ApiError)
    assert "max_sessions=2" in str(ends[2])


@pytest.mark.parametrize("name", ["abc\n", " a", "a/b", "x" * 129])
async def test_what_is_no_session_id_is_refused(name: str) -> None:
    with pytest.raises(ApiError, match="session id: got"):
        await desk_of(Source()).for_call(name, "group:g", 5)


@pytest.mark.parametrize("text", ['{"reward": 1e39}', '{"reward": 1' + "0" * 400 + "}", '{"reward": NaN}'])
def test_a_reward_that_no_float32_holds_is_refused(text: str) -> None:
    with pytest.raises(ApiError, match="wants a finite number"):
        read_reward(json.loads(text))


@pytest.mark.parametrize("body", [b'{"a": "\\ud800"}', b'{"a": 1e999}', b'{"temperature": 1' + b"0" * 400 + b"}"])
def test_a_body_that_nobody_could_carry_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match="the body"):
        parse_json(body)


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', '{"a": NaN}', '{"a": ' + "[" * 90_000, "{"])
def test_arguments_that_nobody_could_carry_stay_text(arguments: str) -> None:
    """A policy may write anything there, and the client gives it back."""
    call = {"function": {"name": "add", "arguments": arguments}}
    (message,) = read_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"]["arguments"] == arguments
    call["function"]["arguments"] = '{"a": 1}'
    (message,) = read_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def test_missing_numbers_of_a_row_are_null_for_its_agent() -> None:
    prompt = Prompt(GroupId(0, 0), (), "x", math.nan, {"level": math.nan, "name": "a"})
    seat = types.SimpleNamespace(task=types.SimpleNamespace(prompt=prompt))
    shown = json.loads(bytes(JSONResponse(_task(cast(Any, seat))).body))
    assert (shown["ground_truth"], shown["extra_info"]) == (None, {"level": None, "name": "a"})
