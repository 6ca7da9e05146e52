"""A sample's tools: each is made ready once, before it is used, also by calls side by side."""

from __future__ import annotations

import asyncio
import types
from typing import Any, cast

from argosy.config.schema.agents import AgentsConfig, MultiTurnConfig
from argosy.controller.agents.parsers.base import Parsed, ToolCall
from argosy.controller.agents.tools.base import BaseTool
from argosy.controller.agents.tools.calls import ToolCalls
from argosy.controller.agents.tools.kit import ToolKit

SCHEMA = {"type": "function", "function": {"name": "t", "parameters": {}}}


class Stateful(BaseTool):
    """Gives its instances ids of its own, and notes what is asked of it."""

    seen: list[str]

    async def create(self, instance_id: str, **_: Any) -> tuple[str, None]:
        await asyncio.sleep(0.02)
        self.seen.append("create")
        return "own", None

    async def execute(self, instance_id: str, parameters: Any, **_: Any) -> str:
        self.seen.append(f"execute {instance_id}")
        return "ok"

    async def release(self, instance_id: str, **_: Any) -> None:
        self.seen.append(f"release {instance_id}")


async def test_parallel_calls_wait_until_their_tool_is_made() -> None:
    tool = Stateful({}, SCHEMA)
    tool.seen = []
    episode = types.SimpleNamespace(
        prompt=types.SimpleNamespace(extra_info={}, tools=(SCHEMA,)),
        request=types.SimpleNamespace(key="train:e0-p0-k0-a0"),
        reward=lambda _: None,
        add=lambda *_: None,
        called=lambda *_: None,
    )
    async with ToolKit(cast(Any, episode), ToolCalls({"t": tool}, MultiTurnConfig(), AgentsConfig()), 4) as kit:
        messages = await kit.answer(Parsed("", (ToolCall("t", {}), ToolCall("t", {})), ()))
    assert [message["content"] for message in messages] == ["ok", "ok"]
    assert tool.seen == ["create", "execute own", "execute own", "release own"]
