"""The tools of one sample: made at their first call, released at the sample's end, whatever happens in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from argosy.controller.agents.episode import Episode
from argosy.controller.agents.parsers.base import Parsed, ToolCall
from argosy.controller.agents.tools.base import ToolResponse
from argosy.controller.agents.tools.calls import ToolCalls

log = logging.getLogger(__name__)


class ToolKit:
    """An async context manager around a sample's conversation.

    Args:
        episode: Of the sample; rewards and figures of calls go there.
        calls: Of the run.
        max_parallel_calls: Calls of one turn that are made; the model is told about the others.
    """

    def __init__(self, episode: Episode, calls: ToolCalls, max_parallel_calls: int) -> None:
        self._episode = episode
        self._calls = calls
        self._most = max_parallel_calls
        given = episode.prompt.extra_info.get("tools_kwargs")
        self._kwargs: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        self._offered = {str(tool["function"]["name"]) for tool in episode.prompt.tools} or set(calls.tools)
        self._ids: dict[str, str] = {}
        self._making: dict[str, asyncio.Lock] = {}
        self._call_count = 0

    async def __aenter__(self) -> ToolKit:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, instance in self._ids.items():
            tool = self._calls.tools[name]
            try:
                async with asyncio.timeout(self._calls.time_of(tool)):
                    if kind is None:
                        worth = await self._calls.invoke(tool.calc_reward, instance, **self._of(name, "calc_reward"))
                        self._episode.reward(float(worth or 0.0))
                    await self._calls.invoke(tool.release, instance, **self._of(name, "release"))
            except Exception as failure:
                self._episode.add("tool_failures")
                log.warning("the tool %s failed at the end of a sample", name, exc_info=failure)

    async def answer(self, parsed: Parsed) -> list[dict[str, Any]]:
        """Make a turn's calls and write what they give as tool messages, in the calls' order."""
        made, rest = parsed.calls[: self._most], parsed.calls[self._most :]
        numbered = [(call, f"call{self._call_count + place:05d}") for place, call in enumerate(made)]
        self._call_count += len(made)
        self._episode.called([call.openai(call_id) for call, call_id in numbered], parsed.content)
        self._episode.add("tool_calls", len(made))
        responses = await asyncio.gather(*(self._one(call) for call in made))
        messages = [
            _message(r.text, call.name, call_id) for (call, call_id), r in zip(numbered, responses, strict=True)
        ]
        for response in responses:
            self._enter(response)
        for problem in parsed.problems[:1]:  # one is enough to tell: a turn may hold dozens
            self._episode.add("malformed_calls", len(parsed.problems))
            messages.append(_message(f"error: {problem}", "", f"call{self._call_count:05d}"))
        if rest:
            self._episode.add("refused_calls", len(rest))
            text = f"error: {len(rest)} more calls were not made: at most {self._most} a turn"
            messages.append(_message(text, rest[0].name, f"call{self._call_count:05d}"))
        return messages

    async def _one(self, call: ToolCall) -> ToolResponse:
        if call.name not in self._offered or call.name not in self._calls.tools:
            known = ", ".join(sorted(self._offered))
            text = f"error: there is no tool {call.name[:100]!r}; the tools are {known}"
            return ToolResponse(text, failed=True, metrics={"malformed_calls": 1.0})
        async with self._making.setdefault(call.name, asyncio.Lock()):  # a turn's calls are made side by side
            if call.name not in self._ids:
                unable = await self._make(call.name)
                if unable is not None:
                    return unable
        return await self._calls.execute(self._ids[call.name], call, self._of(call.name, "execute"))

    async def _make(self, name: str) -> ToolResponse | None:
        """Create a tool's instance; what to tell the model if that can't be done."""
        tool, instance = self._calls.tools[name], f"{self._episode.request.key}/{name}"
        try:
            async with asyncio.timeout(self._calls.time_of(tool)):
                named = await self._calls.invoke(tool.create, instance, **self._of(name, "create"))
        except Exception as error:
            log.warning("the tool %s could not be made ready", name, exc_info=error)
            return ToolResponse(f"error: {name} is not available: {error}"[:1000], failed=True)
        own = named[0] if isinstance(named, tuple) and named else named  # verl's create gives an id back
        self._ids[name] = own if isinstance(own, str) and own else instance
        return None

    def _enter(self, response: ToolResponse) -> None:
        self._episode.reward(response.reward)
        self._episode.add("tool_failures", float(response.failed))
        for name, value in response.metrics.items():
            self._episode.add(name, value)

    def _of(self, name: str, method: str) -> Mapping[str, Any]:
        """The row's arguments for a method of a tool."""
        own = self._kwargs.get(name)
        given = own.get(f"{method}_kwargs") if isinstance(own, Mapping) else None
        return given if isinstance(given, Mapping) else {}


def _message(text: str, name: str, call_id: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id} | ({"name": name} if name else {})


def names_of(schemas: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of tools in OpenAI's form."""
    return [str(schema["function"]["name"]) for schema in schemas]
