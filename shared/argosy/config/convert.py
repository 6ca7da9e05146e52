"""Plain values to typed fields, strictly: nothing is rounded, cut or guessed, and every refusal has the full path."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

from argosy.config.schema import Config
from argosy.types.errors import ConfigError

_FIELD_TYPES: dict[type[Any], dict[str, Any]] = {}


def field_types(section: type[Any]) -> dict[str, Any]:
    """Name → type of a section's fields, with string annotations resolved (slow, so kept)."""
    if section not in _FIELD_TYPES:
        _FIELD_TYPES[section] = typing.get_type_hints(section)
    return _FIELD_TYPES[section]


def leaves(section: type[Any] = Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(full path, type) of each field that isn't itself a section, in order."""
    for item in dataclasses.fields(section):
        kind = field_types(section)[item.name]
        if dataclasses.is_dataclass(kind):
            yield from leaves(typing.cast("type[Any]", kind), f"{prefix}{item.name}.")
        else:
            yield f"{prefix}{item.name}", kind


def build_section(section: type[Any], values: Mapping[str, Any], prefix: str = "") -> Any:
    """Make a section from nested plain values; a missing field takes its default.

    Raises ConfigError that lists every wrong key and value, one a line.
    """
    problems: list[str] = []
    built = _build(section, values, prefix, problems)
    if problems:
        raise ConfigError("\n".join(problems))
    return built


def _build(section: type[Any], values: Mapping[str, Any], prefix: str, problems: list[str]) -> Any:
    kinds = field_types(section)
    given: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if name not in kinds:
            close = difflib.get_close_matches(name, kinds, n=1)
            hint = f"Did you mean {prefix}{close[0]}?" if close else f"The keys here are {', '.join(kinds)}."
            problems.append(f"{path}: no such key. {hint}")
            continue
        kind = kinds[name]
        if dataclasses.is_dataclass(kind):
            if not isinstance(value, Mapping):
                problems.append(f"{path}: is a section of keys, got {describe(value)}")
                continue
            given[name] = _build(typing.cast("type[Any]", kind), value, f"{path}.", problems)
            continue
        try:
            given[name] = convert(kind, value, path)
        except ConfigError as error:
            problems.append(error.message)
    return section(**given)


def convert(kind: Any, value: Any, path: str) -> Any:
    """One plain value as `kind`. Raises ConfigError with the path, what was given and what is wanted."""
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        (inner,) = [option for option in options if option is not type(None)]
        return convert(inner, value, path)
    if origin is tuple:
        return _tuple(options, value, path)
    if origin is not None and issubclass(origin, Mapping):
        if isinstance(value, Mapping):
            return {
                name: item if options[1] is Any else convert(options[1], item, f"{path}.{name}")
                for name, item in value.items()
            }
        raise ConfigError(f"{path}: wants a mapping such as {{name: value}}, got {describe(value)}")
    return _scalar(kind, value, path)


def _tuple(options: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    variadic = len(options) == 2 and options[1] is Ellipsis
    if isinstance(value, str) and variadic and value:
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ConfigError(f"{path}: wants a list such as [a,b], got {describe(value)}")
    if not variadic and len(value) != len(options):
        raise ConfigError(f"{path}: wants {len(options)} values, got {len(value)}: {list(value)!r}")
    kinds = [options[0]] * len(value) if variadic else list(options)
    return tuple(convert(kind, item, f"{path}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True)))


def _scalar(kind: Any, value: Any, path: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is kind:
        return value
    raise ConfigError(f"{path}: wants {_WANTED[kind]}, got {describe(value)}{_hint(kind, value)}")


def _hint(kind: Any, value: Any) -> str:
    if kind is str and isinstance(value, int | float):
        return f"""; quote it to make it text: '"{value}"'"""
    if kind in (int, float) and isinstance(value, str) and _is_number(value):
        return "; leave out the quotes"
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def describe(value: Any) -> str:
    """A value as a message shows it: null, not None; true, not True; text quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {value!r}"
    return repr(value)


def get_value(config: Any, path: str) -> Any:
    """The value at a full path. Raises ConfigError if there is none."""
    for name in path.split("."):
        if not hasattr(config, name):
            raise ConfigError(f"{path}: no such key")
        config = getattr(config, name)
    return config


def replace_values(config: Config, values: Mapping[str, Any]) -> Config:
    """See `Config.with_values`."""
    for path, value in values.items():
        config = _replace(config, path.split("."), value, path)
    return config


def _replace(section: Any, names: list[str], value: Any, path: str) -> Any:
    kinds = field_types(type(section))
    if names[0] not in kinds:
        raise ConfigError(f"{path}: no such key")
    if len(names) == 1:
        return dataclasses.replace(section, **{names[0]: convert(kinds[names[0]], value, path)})
    inner = getattr(section, names[0])
    if not dataclasses.is_dataclass(inner):
        raise ConfigError(f"{path}: no such key")
    return dataclasses.replace(section, **{names[0]: _replace(inner, names[1:], value, path)})
