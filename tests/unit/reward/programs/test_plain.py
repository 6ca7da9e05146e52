"""How values travel: which have an encoding, and that no method of the program's own is called for it."""

from __future__ import annotations

import collections
import enum
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.reward.programs.compare import same_value
from argosy.sandbox import plain


class Colour(enum.IntEnum):
    RED = 3


class Flags(enum.IntFlag):
    A = 4


class Word(enum.StrEnum):
    YES = "yes"


class OlderWord(str, enum.Enum):  # noqa: UP042 -- as programs write it
    NO = "no"


class Point(NamedTuple):
    x: int
    y: object


class Named(collections.namedtuple("Named", "x y")):
    def norm(self) -> int:
        return abs(int(self.x))


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (Colour.RED, 3),
        (Flags.A, 4),
        (Word.YES, "yes"),
        (OlderWord.NO, "no"),
        (Point(1, [2]), [1, [2]]),
        (Named(1, Colour.RED), [1, 3]),
        (np.int64(3), 3),
        (np.uint8(3), 3),
        (np.float64(0.5), 0.5),
        (np.float32(0.1), 0.1),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(3), 3),
        (np.array([1, None, Colour.RED], dtype=object), [1, None, 3]),
        ({"a": [np.int32(4)]}, {"a": [4]}),
        (range(3), [0, 1, 2]),
    ],
    ids=repr,
)
def test_what_honest_functions_return(actual: Any, expected: Any) -> None:
    """As what it is, by exact types: True of numpy is True and not 1."""
    found = plain.decode(plain.encode(actual))
    assert same_value(found, expected)
    assert type(found) is type(expected)


class _Equal:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


class EqualColour(_Equal, enum.IntEnum):
    RED = 3


class EqualPoint(_Equal, Point):
    pass


class EqualArray(np.ndarray[Any, Any]):
    def tolist(self) -> Any:
        raise AssertionError("a method of the program's own was called")


class EqualFloat(np.float64):
    def item(self, *_arguments: Any) -> Any:
        raise AssertionError("a method of the program's own was called")


class PlainEnum(enum.Enum):
    ONE = 1


class EqualType(type):
    """Of a class that says it is any other one."""

    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return hash(list)


class NoList(metaclass=EqualType):
    def __iter__(self) -> Iterator[int]:
        return iter([3])


class FieldsOnly:
    _fields = ("x",)


@pytest.mark.parametrize(
    "value",
    [
        EqualColour.RED, EqualPoint(1, 2), np.array([3]).view(EqualArray), EqualFloat(3), PlainEnum.ONE, FieldsOnly(),
        NoList(), np.longdouble(3), np.complex128(1j), np.datetime64("2020-01-01"), np.array([b"x"]),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_g7_what_only_looks_like_it_has_no_encoding(value: Any) -> None:
    with pytest.raises(plain.NotPlainError):
        plain.encode([value])


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(PLAIN)
def test_plain_data_comes_back(value: Any) -> None:
    assert plain.decode(plain.encode(value)) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    try:
        plain.decode(data)
    except plain.NotPlainError:
        return


def test_what_is_no_plain_data() -> None:
    class Number(int):
        pass

    cyclic: list[Any] = []
    cyclic.append(cyclic)
    for value in (object(), Number(3), [Number(3)], {Number(1): 2}, cyclic, b"x", 1j):
        with pytest.raises(plain.NotPlainError):
            plain.encode(value)
    for broken in (b"[" * 200, b"s9:x", b"i", b"{n}", b"nn", b"", b"{{}n}", b"s-1:x", b"ixyz;"):
        with pytest.raises(plain.NotPlainError):
            plain.decode(broken)
    assert math.isnan(plain.decode(plain.encode(math.nan)))
