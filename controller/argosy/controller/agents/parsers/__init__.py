"""How models write tool calls: `actor_rollout_ref.rollout.multi_turn.format` chooses one."""

from __future__ import annotations

from argosy.controller.agents.parsers.base import Parsed, Schema, ToolCall, ToolParser
from argosy.controller.agents.parsers.tagged import Hermes, QwenCoder
from argosy.controller.agents.parsers.untagged import LlamaJson, PlainJson, Pythonic
from argosy.types.errors import ConfigError

__all__ = ["PARSERS", "Parsed", "Schema", "ToolCall", "ToolParser", "parser"]

PARSERS: dict[str, type[ToolParser]] = {
    "hermes": Hermes,
    "qwen": Hermes,
    "qwen3_coder": QwenCoder,
    "llama3_json": LlamaJson,
    "pythonic": Pythonic,
    "json": PlainJson,
}
"""By name. Qwen 2.5 and 3 write as Hermes does."""


def parser(name: str) -> ToolParser:
    """The parser of a format. Raises ConfigError on an unknown one.

    >>> parser("hermes").parse('<tool_call>{"name": "now"}</tool_call>', []).calls[0].name
    'now'
    """
    if name not in PARSERS:
        raise ConfigError(
            f"actor_rollout_ref.rollout.multi_turn.format: got {name!r}, wants one of {', '.join(PARSERS)}"
        )
    return PARSERS[name]()
