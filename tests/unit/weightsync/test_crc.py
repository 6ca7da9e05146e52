from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from argosy.weightsync.crc import combine


@given(st.lists(st.binary(max_size=3000), max_size=12))
def test_the_crc_of_parts_is_that_of_the_whole(parts: list[bytes]) -> None:
    assert combine((zlib.crc32(part), len(part)) for part in parts) == zlib.crc32(b"".join(parts))


def test_a_large_part() -> None:
    head, tail = bytes(range(256)) * 5000, b"tail" * 700_000
    assert combine([(zlib.crc32(head), len(head)), (zlib.crc32(tail), len(tail))]) == zlib.crc32(head + tail)


@given(st.integers(1, 200), st.binary(min_size=100, max_size=20_000))
def test_many_parts_of_one_size(size: int, data: bytes) -> None:
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    assert combine((zlib.crc32(part), len(part)) for part in parts) == zlib.crc32(data)
