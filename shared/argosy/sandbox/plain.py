"""Plain data as bytes, by known types: what goes into the sandbox as arguments and comes out as claims.

    n                None          t f      True, False
    i<hex>;          int           d<hex>;  float (`float.hex`)
    s<n>:<n bytes>   str, UTF-8    [ … ]    list, tuple
    ( … )            set           { k v … }  dict

What honest functions return besides: `range`, deques, the mappings of `collections`, members of an int or str Enum,
named tuples, and numpy's arrays and scalars (which of those: `_unwrapped`). Each is read by a method of the known type.
No method of an object of the program's own is ever called: an int subclass, or an object that says it equals
everything, has no encoding (case G7). Both sides are iterative or bounded in depth.
"""

from __future__ import annotations

import collections
import enum
import functools
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

MOST_DEPTH = 100
_SEQUENCES: tuple[type, ...] = (list, tuple, collections.deque, range)
_SETS: tuple[type, ...] = (set, frozenset)
_MAPPINGS: tuple[type, ...] = (dict, collections.defaultdict, collections.OrderedDict, collections.Counter)


_PYTHONS_OWN = (object, int, str, tuple, enum.Enum, enum.ReprEnum, enum.IntEnum, enum.StrEnum, enum.Flag, enum.IntFlag)
_COMPARISON = ("__eq__", "__ne__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__")


class NotPlainError(ValueError):
    """The value, or the bytes, are no plain data."""


def encode(value: object, depth: int = 0) -> bytes:
    """Raises NotPlainError for any other type, and for what is nested deeper than 100."""
    kind = type(value)
    if value is None:
        return b"n"
    if kind is bool:
        return b"t" if value else b"f"
    if kind is int:
        return b"i%s;" % int.__format__(value, "x").encode()  # type: ignore[arg-type]
    if kind is float:
        return b"d%s;" % float.hex(value).encode()  # type: ignore[arg-type]
    if kind is str:
        text = str.encode(value, "utf-8", "surrogatepass")  # type: ignore[arg-type]
        return b"s%d:%s" % (len(text), text)
    if depth >= MOST_DEPTH:
        raise NotPlainError(f"nested deeper than {MOST_DEPTH}")
    if _among(kind, _SEQUENCES):
        return b"[%s]" % b"".join([encode(item, depth + 1) for item in _items(kind, value)])
    if _among(kind, _SETS):
        return b"(%s)" % b"".join([encode(item, depth + 1) for item in _items(kind, value)])
    if _among(kind, _MAPPINGS):
        pairs: Iterable[tuple[object, object]] = dict.items(value)  # type: ignore[arg-type]
        return b"{%s}" % b"".join([encode(item, depth + 1) for pair in pairs for item in pair])
    return encode(_unwrapped(kind, value), depth + 1)


def _unwrapped(kind: type, value: object) -> object:
    """What is in an object of a type that isn't plain, but known:

    - exactly numpy.ndarray, exactly one of numpy's own scalar types: as Python's lists and numbers
    - an Enum that is an int or a str, and a named tuple: as what they are, if the class, and all that it comes from up
      to Python's own, leave comparison and hashing as they are
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if kind is getattr(numpy, "ndarray", None):
            return numpy.ndarray.tolist(value)
        if id(kind) in _numbers(numpy):
            return numpy.generic.item(value)
    bases: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    own = [base for base in bases if not _among(base, _PYTHONS_OWN)]
    if not any(name in type.__dict__["__dict__"].__get__(base) for base in own for name in _COMPARISON):
        if issubclass(type(kind), enum.EnumMeta):
            if _among(int, bases):
                return int.__index__(value)  # type: ignore[arg-type]
            if _among(str, bases):
                return str.__str__(value)
        elif _among(tuple, bases) and any("_fields" in type.__dict__["__dict__"].__get__(base) for base in own):
            return list(tuple.__iter__(value))  # type: ignore[arg-type]
    raise NotPlainError(f"a {type.__dict__['__name__'].__get__(kind)} is no plain data")


@functools.cache
def _numbers(numpy: ModuleType) -> frozenset[int]:
    """The ids of numpy's own scalar types."""
    return frozenset(map(id, getattr(numpy, "sctypeDict", {}).values()))


def _among(kind: type, known: Iterable[type]) -> bool:
    """`kind in known` would ask the class of a class whether it equals another."""
    return any(kind is other for other in known)


def _items(kind: type, value: object) -> Iterator[object]:
    return kind.__iter__(value)  # type: ignore[attr-defined, no-any-return]


def decode(data: bytes) -> Any:
    """The value: sequences as lists, sets as a `Bag`, mappings as dicts with keys as they were, tuples for lists.

    Raises NotPlainError.
    """
    try:
        value, end = _decode(data, 0, 0)
    except (IndexError, ValueError, OverflowError, TypeError) as error:
        raise NotPlainError(f"broken data: {error!r}") from None
    if end != len(data):
        raise NotPlainError("broken data: something follows the value")
    return value


class Bag(list[Any]):
    """The members of a set, in no order."""

    def __repr__(self) -> str:
        return f"set({super().__repr__()})"


def _decode(data: bytes, start: int, depth: int) -> tuple[Any, int]:
    tag, place = data[start : start + 1], start + 1
    if tag in (b"n", b"t", b"f"):
        return {b"n": None, b"t": True, b"f": False}[tag], place
    if tag in (b"i", b"d"):
        end = data.index(b";", place)
        text = data[place:end].decode("ascii")
        return (int(text, 16) if tag == b"i" else float.fromhex(text)), end + 1
    if tag == b"s":
        colon = data.index(b":", place, place + 20)
        end = colon + 1 + int(data[place:colon])
        if not colon < end <= len(data):
            raise NotPlainError("broken data: a text is cut")
        return data[colon + 1 : end].decode("utf-8", "surrogatepass"), end
    if tag not in (b"[", b"(", b"{") or depth >= MOST_DEPTH:
        raise NotPlainError(f"broken data: {tag!r} at byte {start}, depth {depth}")
    closing = {b"[": ord("]"), b"(": ord(")"), b"{": ord("}")}[tag]
    items: list[Any] = Bag() if tag == b"(" else []
    while data[place] != closing:
        item, place = _decode(data, place, depth + 1)
        items.append(item)
    if tag == b"{":
        pairs = iter(items)
        return {_hashable(key): item for key, item in zip(pairs, pairs, strict=True)}, place + 1
    return items, place + 1


def _hashable(key: Any) -> Any:
    """A tuple comes as a list, a frozenset as a `Bag`."""
    if isinstance(key, list):
        return (frozenset if isinstance(key, Bag) else tuple)(map(_hashable, key))
    return key
