"""Calls of one run: bounded in number and time, checked before, cut after. A call never raises."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping
from typing import Any

from argosy.config.schema.agents import AgentsConfig, MultiTurnConfig
from argosy.controller.agents.parsers.base import ToolCall
from argosy.controller.agents.tools.base import BaseTool, ToolResponse, response_of
from argosy.controller.agents.tools.schema import argument_problem
from argosy.controller.agents.tools.threads import CallThreads

log = logging.getLogger(__name__)

MAX_LOGGED = 20
"""Failures of tools that are logged with their trace; the metric counts them all."""


class ToolCalls:
    """Makes the calls of all samples.

    Args:
        tools: By name.
        multi_turn: Has the limits of what a call may give back.
        limits: Has the time of a call, and how many there may be at once.
    """

    def __init__(self, tools: Mapping[str, BaseTool], multi_turn: MultiTurnConfig, limits: AgentsConfig) -> None:
        self.tools = tools
        self._multi_turn = multi_turn
        self._limits = limits
        self._slots = {
            name: asyncio.Semaphore(int(tool.config.get("max_concurrency", limits.max_concurrent_calls)))
            for name, tool in tools.items()
        }
        self._all = asyncio.Semaphore(limits.max_concurrent_calls)
        self._threads = CallThreads(limits.max_concurrent_calls)
        self._logged = 0

    async def execute(self, instance_id: str, call: ToolCall, arguments: Mapping[str, Any]) -> ToolResponse:
        """One call of a tool that exists; `arguments` are the row's execute_kwargs."""
        tool = self.tools[call.name]
        problem = argument_problem(call.arguments, tool.tool_schema)
        if problem is not None:
            return ToolResponse(f"error: {problem}", failed=True, metrics={"malformed_calls": 1.0})
        seconds = self.time_of(tool)
        try:
            async with self._all, self._slots[call.name]:
                async with asyncio.timeout(seconds) as scope:
                    answer = await self.invoke(tool.execute, instance_id, dict(call.arguments), **arguments)
            response = response_of(answer)
        except TimeoutError as error:
            if scope.expired():
                return ToolResponse(f"error: {call.name} took longer than {seconds:g} s", failed=True)
            return self._failed(tool, error)
        except Exception as error:  # noqa: BLE001 - the tool's own failure: told to the model, logged and counted
            return self._failed(tool, error)
        text = cut(
            response.text, self._multi_turn.max_tool_response_length, self._multi_turn.tool_response_truncate_side
        )
        return ToolResponse(text, response.reward, response.metrics, response.failed)

    def time_of(self, tool: BaseTool) -> float:
        """Seconds that a call of it may take."""
        return float(tool.config.get("timeout_s", self._limits.tool_timeout_s))

    async def invoke(self, method: Any, *positional: Any, **named: Any) -> Any:
        """A tool's method, on a thread where it is a plain function."""
        if inspect.iscoroutinefunction(method):
            return await method(*positional, **named)
        value = await self._threads.run(lambda: method(*positional, **named))
        return await value if inspect.isawaitable(value) else value

    def _failed(self, tool: BaseTool, error: Exception) -> ToolResponse:
        self._logged += 1
        if self._logged <= MAX_LOGGED:
            log.warning("the tool %s failed", tool.name, exc_info=error)
        return ToolResponse(f"error: {type(error).__name__}: {error}"[:1000], failed=True)


def cut(text: str, limit: int, side: str) -> str:
    """At most `limit` characters of what a tool says, and a note where some are missing: "left" keeps the beginning,
    "right" the end, "middle" both (verl's meaning).

    >>> cut("abcdefgh", 4, "middle")
    'ab...(truncated)...gh'
    """
    if len(text) <= limit:
        return text
    if side == "left":
        return text[:limit] + "...(truncated)"
    if side == "right":
        return "(truncated)..." + text[len(text) - limit :]
    half = limit // 2
    return text[:half] + "...(truncated)..." + text[len(text) - half :]
