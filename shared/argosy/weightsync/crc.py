"""crc32 of a whole from the crc32s of its parts, so that bytes are read once for both checksums."""

from __future__ import annotations

import functools
from collections.abc import Iterable

_POLYNOMIAL = 0xEDB88320
"""zlib's, bit-reversed: the coefficient of x^0 is bit 31."""
_ONE = 1 << 31


def _multiply(a: int, b: int) -> int:
    """a · b modulo the polynomial, in GF(2)."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


@functools.lru_cache(maxsize=1024)
def _power(byte_count: int) -> int:
    """x^(8 · byte_count) modulo the polynomial: what appending that many bytes multiplies a crc by."""
    result, factor, exponent = _ONE, _ONE >> 8, byte_count
    while exponent:
        if exponent & 1:
            result = _multiply(factor, result)
        factor = _multiply(factor, factor)
        exponent >>= 1
    return result


def combine(parts: Iterable[tuple[int, int]]) -> int:
    """crc32 of the concatenation of parts, given as (crc32, size in bytes) in order; 0 for no part.

    >>> import zlib
    >>> combine([(zlib.crc32(b"weig"), 4), (zlib.crc32(b"hts"), 3)]) == zlib.crc32(b"weights")
    True
    """
    total = 0
    for checksum, byte_count in parts:
        total = _multiply(_power(byte_count), total) ^ checksum
    return total


def to_hex(checksum: int) -> str:
    """Eight hex digits, as `TensorSpec.checksum` has them."""
    return f"{checksum:08x}"
