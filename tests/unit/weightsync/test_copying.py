"""Copies that are checked on their way: the compiled pass and the one without it do the same."""

from __future__ import annotations

import threading
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.types.errors import DeadlineError
from argosy.weightsync import copying
from argosy.weightsync.buffers import Place
from argosy.weightsync.native.library import load_library
from argosy.weightsync.tensors import ByteArray

SIZE = 3 << 20
BYTES: ByteArray = np.random.default_rng(7).integers(0, 256, SIZE, np.uint8)
NATIVE = pytest.mark.skipif(load_library() is None, reason="needs a C++ compiler and a CPU with AVX-512")
LENGTHS = [0, 1, 63, 64, 255, 256, 511, 512, 513, 768, 4095, 4096, 1 << 20, SIZE - 64]


@pytest.fixture(params=[pytest.param(True, marks=NATIVE, id="compiled"), pytest.param(False, id="plain")])
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(copying, "load_library", lambda: None)


def aligned(size: int, beyond: int = 0) -> ByteArray:
    """Zeros that begin `beyond` bytes behind a cache line."""
    room = np.zeros(size + 128, np.uint8)
    start = -room.ctypes.data % 64 + beyond
    return room[start : start + size]


def copied(places: list[Place], target: ByteArray, threads: int = 2) -> ByteArray:
    """What should be in the target, after checking the checksums."""
    found = copying.copy_checked(BYTES, target, places, threads=threads)
    assert found == [zlib.crc32(BYTES[place.start : place.start + place.size].tobytes()) for place in places]
    expected = np.zeros_like(target)
    for place in places:
        expected[place.start : place.start + place.size] = BYTES[place.start : place.start + place.size]
    return expected


@pytest.mark.usefixtures("_kind")
@pytest.mark.parametrize("beyond", [0, 3])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_bytes_of_a_place_are_copied_and_no_others(length: int, beyond: int) -> None:
    target = aligned(SIZE, beyond)
    for start in (0, 64 - beyond):
        assert np.array_equal(copied([Place("a", 0, start, length)], target), target)
        target[:] = 0


@pytest.mark.usefixtures("_kind")
def test_many_places_of_any_size_in_several_threads() -> None:
    ends = np.sort(np.random.default_rng(3).choice(np.arange(1, SIZE), 60, replace=False)).tolist()
    places = [Place("a", 0, start, stop - start) for start, stop in zip([0, *ends], [*ends, SIZE], strict=True)]
    target = aligned(SIZE)
    copied(places, target, threads=3)
    assert np.array_equal(target, BYTES)
    assert copying.checksums(BYTES, places, threads=3) == copying.checksums(target, places, threads=1)


@pytest.mark.usefixtures("_kind")
def test_one_messages_bytes_are_copied() -> None:
    target = aligned(1 << 20)
    assert copying.copy_piece(BYTES[: 1 << 20].data, target) == zlib.crc32(target.tobytes())
    assert np.array_equal(target, BYTES[: 1 << 20])
    with pytest.raises(ValueError, match="3 bytes for 4"):
        copying.copy_piece(b"abc", aligned(4))


@NATIVE
@given(st.binary(max_size=3000))
def test_the_compiled_checksum_is_zlibs(data: bytes) -> None:
    memory = np.frombuffer(data, np.uint8)
    assert copying.checksums(memory, [Place("a", 0, 0, len(data))], threads=1) == [zlib.crc32(data)]


@NATIVE
def test_the_compiled_pass_is_not_led_beyond_its_memory() -> None:
    for start, size in ((0, SIZE + 1), (SIZE, 1), (-1, 1)):
        with pytest.raises(ValueError, match="beyond"):
            copying.copy_checked(BYTES, aligned(SIZE), [Place("a", 0, start, size)], threads=1)
    with pytest.raises(ValueError, match="beyond"):
        copying.copy_checked(BYTES, aligned(100), [Place("a", 0, 0, 101)], threads=1)


@pytest.mark.usefixtures("_kind")
def test_a_copy_that_was_given_up_ends() -> None:
    stop = threading.Event()
    stop.set()
    target = aligned(SIZE)
    with pytest.raises(DeadlineError, match="given up"):
        copying.copy_checked(BYTES, target, [Place("a", 0, 0, SIZE)], threads=2, stop=stop)
    assert not target.any()
