"""Frozen dataclasses as plain JSON values and back, by their type hints."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, Union, cast

R = TypeVar("R")


def to_plain(record: Any) -> Any:
    """A dataclass as nested dicts, lists and scalars.

    >>> to_plain(dataclasses.make_dataclass("Pair", ["a", "b"])(1, (2.5, None)))
    {'a': 1, 'b': [2.5, None]}
    """
    if dataclasses.is_dataclass(record):
        return {item.name: to_plain(getattr(record, item.name)) for item in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {str(key): to_plain(value) for key, value in record.items()}
    if isinstance(record, list | tuple | set | frozenset):
        return [to_plain(value) for value in record]
    return record


def from_plain(kind: type[R], value: Any) -> R:
    """Make the dataclass again. Raises KeyError, TypeError or ValueError if `value` isn't one of that kind."""
    return cast(R, _made(kind, value))


def _made(kind: Any, value: Any) -> Any:
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return cast(Any, kind)(**{name: _made(hints[name], field) for name, field in value.items()})
    if origin in (Union, types.UnionType):
        return _of_union(options, value)
    if origin in (tuple, list, set, frozenset):
        return _collection(origin, options, value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _made(options[1], item) for key, item in value.items()}
    return float(value) if kind is float else value


def _of_union(options: tuple[Any, ...], value: Any) -> Any:
    """Optional records, and unions of plain scalars, which JSON keeps apart by itself."""
    records = [option for option in options if dataclasses.is_dataclass(option) or typing.get_origin(option)]
    if value is None or not records:
        return value
    (record,) = records
    return _made(record, value) if isinstance(value, dict | list) else value


def _collection(origin: Any, options: tuple[Any, ...], value: Any) -> Any:
    if origin is tuple and options[1:] != (Ellipsis,):
        return tuple(_made(option, item) for option, item in zip(options, value, strict=True))
    return origin(_made(options[0], item) for item in value)
