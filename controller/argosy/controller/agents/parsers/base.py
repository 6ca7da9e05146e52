"""What parsers of tool calls give. They never raise: what can't be read is a problem, told in words for the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from argosy.controller.plain import cleaned, refusal

Schema = Mapping[str, Any]
"""A tool in OpenAI's form: {"type": "function", "function": {"name", "description", "parameters"}}."""

MAX_CALLS = 64
"""Calls that are read of one turn; a model may write thousands."""
MAX_CALL_CHARACTERS = 100_000
"""A longer call isn't read."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a model wrote."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    """What the model called it; empty where the format has no ids."""

    def openai(self, call_id: str = "") -> dict[str, Any]:
        """As a chat message's `tool_calls` has it; arguments as an object, which chat templates expect."""
        function = {"name": self.name, "arguments": dict(self.arguments)}
        return {"id": self.id or call_id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a turn says.

    >>> Parsed("hello").is_answer
    True
    """

    content: str
    """The text around the calls."""
    calls: tuple[ToolCall, ...] = ()
    problems: tuple[str, ...] = ()
    """What looked like a call and couldn't be read, each in words for the model."""

    @property
    def is_answer(self) -> bool:
        """Nothing is called: the turn is the answer."""
        return not self.calls and not self.problems


class ToolParser(Protocol):
    """Reads calls in one format."""

    def parse(self, text: str, tools: Sequence[Schema]) -> Parsed:
        """Of a turn's text with its special tokens; `tools` are those on offer. Never raises."""
        ...


def read_call(text: str, name_key: str = "name", argument_keys: Sequence[str] = ("arguments", "parameters")) -> Any:
    """A call that is written as a JSON object; a string (the problem) where it isn't one.

    >>> read_call('{"name": "add", "arguments": {"a": 1}}').arguments
    {'a': 1}
    >>> read_call('{"name": "add"')
    'the call is no valid JSON'
    """
    if len(text) > MAX_CALL_CHARACTERS:
        return f"the call has {len(text)} characters, at most {MAX_CALL_CHARACTERS} are read"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "the call is no valid JSON"
    return call_of(value, name_key, argument_keys)


def call_of(value: Any, name_key: str = "name", argument_keys: Sequence[str] = ("arguments", "parameters")) -> Any:
    """A call from parsed JSON, or the problem."""
    if not isinstance(value, Mapping):
        return "the call is no JSON object"
    inner = value.get("function")
    if isinstance(inner, Mapping):  # OpenAI's own form
        value = inner
    name = value.get(name_key)
    if not isinstance(name, str) or not name:
        return f"the call has no {name_key!r}"
    if refusal(name):
        return f"the call's name can't be read: {refusal(name)}"
    arguments: Any = next((value[key] for key in argument_keys if key in value), {})
    if isinstance(arguments, str):  # OpenAI's form has JSON text here
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return f"the arguments of {name} are no valid JSON"
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        return f"the arguments of {name} are no JSON object"
    return checked(name, arguments)


def checked(name: str, arguments: Mapping[str, Any]) -> ToolCall | str:
    """The call, or the problem where its arguments are more than JSON (Python's JSON reads NaN and half characters):
    they become messages, which checkpoints, records and reward services must carry.

    >>> checked("add", {"a": float("nan")})
    "the arguments of add can't be read: nan is no JSON number"
    """
    if problem := refusal(arguments):
        return f"the arguments of {name} can't be read: {problem}"
    return ToolCall(name, cleaned(arguments))


def collect(content: str, found: Sequence[Any]) -> Parsed:
    """Calls and problems in a row as a Parsed; what is beyond MAX_CALLS is a problem."""
    calls = tuple(one for one in found if isinstance(one, ToolCall))
    problems = [one for one in found if isinstance(one, str)]
    if len(calls) > MAX_CALLS:
        problems.append(f"a turn has {len(calls)} calls, at most {MAX_CALLS} are read")
    return Parsed(content.strip(), calls[:MAX_CALLS], tuple(problems[:MAX_CALLS]))
