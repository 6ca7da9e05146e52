"""Tool schemas: what is accepted in a tool file, and whether a call's arguments fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from argosy.controller.agents.parsers.base import Schema

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (Mapping,),
    "null": (type(None),),
}


def schema_problem(schema: Any) -> str | None:
    """Why this is no tool in OpenAI's form; None when it is one."""
    if not isinstance(schema, Mapping):
        return f"is a {type(schema).__name__}, no object"
    if schema.get("type") != "function" or not isinstance(schema.get("function"), Mapping):
        return 'is not of the form {"type": "function", "function": {"name": …, "parameters": …}}'
    function = schema["function"]
    if not isinstance(function.get("name"), str) or not function["name"]:
        return "has no function.name"
    parameters = function.get("parameters", {})
    if not isinstance(parameters, Mapping) or not isinstance(parameters.get("properties", {}), Mapping):
        return "has function.parameters that are no JSON schema of an object"
    return None


def argument_problem(arguments: Mapping[str, Any], schema: Schema) -> str | None:
    """Why a call's arguments don't fit, in words for the model; None when they do.

    Looked at are what is required, what exists, and the type and enum of each argument at the top level.

    >>> tool = {"function": {"parameters": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}}}
    >>> argument_problem({"a": "x"}, tool)
    "argument 'a' must be of type integer, got 'x'"
    """
    parameters = schema["function"].get("parameters") or {}
    properties = parameters.get("properties") or {}
    missing = [name for name in parameters.get("required") or () if name not in arguments]
    if missing:
        return f"argument {missing[0]!r} is missing"
    for name, value in arguments.items():
        if name not in properties:
            if properties and parameters.get("additionalProperties") is not True:
                return f"there is no argument {name!r}; the arguments are {', '.join(properties)}"
            continue
        problem = _value_problem(name, value, properties[name])
        if problem is not None:
            return problem
    return None


def _value_problem(name: str, value: Any, schema: Any) -> str | None:
    if not isinstance(schema, Mapping):
        return None
    wanted = schema.get("type")
    kinds = [wanted] if isinstance(wanted, str) else list(wanted or ())
    if schema.get("nullable"):
        kinds.append("null")
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"argument {name!r} must be of type {' or '.join(map(str, kinds))}, got {_short(value)}"
    choices = schema.get("enum")
    if choices and value not in choices:
        return f"argument {name!r} must be one of {', '.join(map(repr, choices))}, got {_short(value)}"
    return None


def _is(value: Any, kind: Any) -> bool:
    if kind not in _TYPES:
        return True
    if isinstance(value, bool) and kind in ("integer", "number"):
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
