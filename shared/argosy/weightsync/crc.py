"""crc32 at memory speed, and crc32 of a whole from the crc32s of its parts, so that bytes are read once for both.

zlib's polynomial whichever library computes it: ISA-L (isal) folds it with vector instructions, about 12 GB/s a core
where zlib does 2. Both give up the interpreter's lock, so that threads add up.
"""

from __future__ import annotations

import functools
import importlib.util
import zlib
from collections.abc import Iterable

_POLYNOMIAL = 0xEDB88320
"""zlib's, bit-reversed: the coefficient of x^0 is bit 31."""
_ONE = 1 << 31
_USES = 16
"""So often a size is multiplied by bit by bit; tables that do it ten times as fast cost as much as that."""
_HAS_ISAL = importlib.util.find_spec("isal") is not None
"""Absent on platforms without a wheel: zlib then gives the same values, slower."""

if _HAS_ISAL:
    from isal import isal_zlib


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """zlib's crc32 of contiguous bytes, that go on after bytes whose crc32 is `before`.

    >>> crc32(b"123456789") == 0xCBF43926
    True
    """
    return isal_zlib.crc32(data, before) if _HAS_ISAL else zlib.crc32(data, before)


def _multiply(a: int, b: int) -> int:
    """a · b modulo the polynomial, in GF(2)."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


class _Shift:
    """What appending a number of bytes does to a crc: multiplying it by x^(8 · count) modulo the polynomial."""

    __slots__ = ("_left", "_power", "_tables")

    def __init__(self, byte_count: int) -> None:
        result, factor, exponent = _ONE, _ONE >> 8, byte_count
        while exponent:
            if exponent & 1:
                result = _multiply(factor, result)
            factor = _multiply(factor, factor)
            exponent >>= 1
        self._power = result
        self._tables: list[list[int]] = []
        """The products of each value of the crc's bytes, the lowest first."""
        self._left = _USES

    def __call__(self, crc: int) -> int:
        if not self._tables:
            self._left -= 1
            if self._left >= 0:
                return _multiply(self._power, crc)
            self._tables = self._make_tables()
        first, second, third, fourth = self._tables
        return first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24]

    def _make_tables(self) -> list[list[int]]:
        tables = []
        for byte in range(4):
            table = [0]
            for bit in range(8):
                image = _multiply(self._power, 1 << 8 * byte + bit)
                table += [value ^ image for value in table]
            tables.append(table)
        return tables


_shift = functools.lru_cache(maxsize=1024)(_Shift)


def combine(parts: Iterable[tuple[int, int]]) -> int:
    """crc32 of the concatenation of parts, given as (crc32, size in bytes) in order; 0 for no part.

    >>> import zlib
    >>> combine([(zlib.crc32(b"weig"), 4), (zlib.crc32(b"hts"), 3)]) == zlib.crc32(b"weights")
    True
    """
    total = 0
    for checksum, byte_count in parts:
        total = (_shift(byte_count)(total) if total else 0) ^ checksum
    return total


def to_hex(checksum: int) -> str:
    """Eight hex digits, as `TensorSpec.checksum` has them."""
    return f"{checksum:08x}"
