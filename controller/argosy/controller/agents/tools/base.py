"""What a tool is. A tool of your own extends BaseTool and is named in a tool file:

    class Weather(BaseTool):
        async def execute(self, instance_id, parameters, **kwargs):
            return f"It is sunny in {parameters['city']}."

    # tools.yaml
    tools:
      - class_name: my_tools.Weather
        config: {}
        tool_schema:
          type: function
          function:
            name: weather
            description: Tells the weather.
            parameters: {type: object, properties: {city: {type: string}}, required: [city]}

One object serves all samples at once: what belongs to one sample is kept under its `instance_id`. Methods may be plain
functions; `execute` then runs on a thread of its own, so it may block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from argosy.controller.agents.parsers.base import Schema


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """What a call gives back to the model.

    >>> ToolResponse("4").text
    '4'
    """

    text: str = ""
    reward: float = 0.0
    """Added at the last token of the turn that called."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Summed over the sample's calls; metrics agent/NAME/mean."""
    failed: bool = False
    """Whether the text tells of a failure; counted as tool_failures."""


class BaseTool:
    """A tool. Its methods have verl's names and arguments.

    Args:
        config: Of the tool file; `timeout_s` (seconds of a call) and `max_concurrency` (calls at one time) are read by
            the caller of every tool, all else is the tool's own.
        tool_schema: In OpenAI's form.
    """

    schema: ClassVar[Schema | None] = None
    """What the tool file may leave out."""

    def __init__(self, config: Mapping[str, Any], tool_schema: Schema) -> None:
        self.config = dict(config)
        self.tool_schema = tool_schema

    @property
    def name(self) -> str:
        """What the model calls it."""
        return str(self.tool_schema["function"]["name"])

    async def create(self, instance_id: str, **kwargs: Any) -> Any:
        """Before a sample's first call. `kwargs` are the row's `extra_info.tools_kwargs[NAME].create_kwargs`."""

    async def execute(self, instance_id: str, parameters: Mapping[str, Any], **kwargs: Any) -> Any:
        """One call; `parameters` fit the schema. `kwargs` are the row's `execute_kwargs`.

        Returns:
            The text for the model, or a ToolResponse, or verl's (text or ToolResponse, reward, metrics). What it raises
            is told to the model.
        """
        raise NotImplementedError(f"{type(self).__name__} has no execute()")

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """At a sample's end: added at its last sampled token. `kwargs` are the row's `calc_reward_kwargs`."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """After a sample's end, however it ended. `kwargs` are the row's `release_kwargs`."""

    def close(self) -> None:
        """At the run's end."""


def response_of(value: Any) -> ToolResponse:
    """What `execute` returned as a ToolResponse. Raises TypeError on anything else."""
    if isinstance(value, tuple) and len(value) == 3:
        text, reward, metrics = value
        inner = response_of(text)
        numbers = {str(name): float(n) for name, n in (metrics or {}).items() if isinstance(n, int | float)}
        return ToolResponse(inner.text, inner.reward + float(reward or 0.0), {**inner.metrics, **numbers}, inner.failed)
    if isinstance(value, ToolResponse):
        return value
    if isinstance(value, str):
        return ToolResponse(value)
    if isinstance(value, int | float) or value is None:
        return ToolResponse("" if value is None else str(value))
    raise TypeError(f"execute() returned a {type(value).__name__}; it returns text, or a ToolResponse")
