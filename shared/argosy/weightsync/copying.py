"""Copying and checking many bytes on several cores: one thread moves about half of what memory can.

In one pass of compiled code where that is to be had (`argosy.weightsync.native`), else piece by piece within the cache.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

import numpy as np

from argosy.types.errors import DeadlineError
from argosy.weightsync.buffers import Place
from argosy.weightsync.crc import crc32
from argosy.weightsync.native.library import load_library
from argosy.weightsync.tensors import ByteArray

Item = TypeVar("Item")
Result = TypeVar("Result")

_RUN_BYTES = 4 << 20
"""Bytes that a thread takes on at a time: few enough that no thread is left with much when the others are through."""
_PIECE_BYTES = 512 << 10
"""Bytes that are copied before they are checked: few enough to be read again out of the core's own cache, many enough
for the interpreter's part not to count. (Copying 4 MiB past the cache and reading them back took 1.4 times as long.)"""


def copy_checked(
    source: ByteArray, target: ByteArray, places: Sequence[Place], *, threads: int, stop: threading.Event | None = None
) -> list[int]:
    """Copy the places from one buffer into another of the same layout; returns the crc32 of each, of the copied bytes.

    Args:
        source: [N] uint8.
        target: [N] uint8.
        places: What to copy.
        threads: Threads to use, at least 1; more than there are cores is pointless, so they are not started.
        stop: Set by whoever gives up; DeadlineError then, within a run's time.
    """

    copy = _copy_of(source, target)

    def work(run: Sequence[Place]) -> list[int]:
        if stop is not None and stop.is_set():
            raise DeadlineError("the copy was given up")
        return copy(run)

    return list(chain.from_iterable(spread(work, _runs(places), threads)))


def copy_piece(source: bytes | memoryview, target: ByteArray) -> int:
    """Copy one message's bytes into [N] uint8 of their length; the crc32 of what was copied."""
    data = np.frombuffer(source, np.uint8)
    if data.size != target.size:
        raise ValueError(f"{data.size} bytes for {target.size}")
    (checksum,) = _copy_of(data, target)([Place("", 0, 0, data.size)])
    return checksum


def checksums(memory: ByteArray, places: Sequence[Place], *, threads: int) -> list[int]:
    """crc32 of each place."""
    return list(chain.from_iterable(spread(_check_of(memory), _runs(places), threads)))


def _copy_of(source: ByteArray, target: ByteArray) -> Callable[[Sequence[Place]], list[int]]:
    """What copies a run of places, and gives their checksums."""
    library = load_library()
    if library is None:
        return lambda run: [_copy_checked(source, target, place) for place in run]
    size = min(source.size, target.size)
    begins = source.ctypes.data, target.ctypes.data
    return lambda run: _call(library.argosy_copy, begins, size, run)


def _check_of(memory: ByteArray) -> Callable[[Sequence[Place]], list[int]]:
    """What gives the checksums of a run of places."""
    library = load_library()
    if library is None:
        return lambda run: [crc32(memory[place.start : place.start + place.size].data) for place in run]
    begins = (memory.ctypes.data,)
    return lambda run: _call(library.argosy_check, begins, memory.size, run)


def _call(function: Callable[..., None], begins: tuple[int, ...], size: int, run: Sequence[Place]) -> list[int]:
    """The checksums that a function of the library finds, in memory of `size` bytes from `begins` on."""
    if any(place.start < 0 or place.start + place.size > size for place in run):
        raise ValueError(f"places beyond the {size} bytes that there are")
    starts = np.array([place.start for place in run], np.int64)
    sizes = np.array([place.size for place in run], np.int64)
    found = np.empty(len(run), np.uint32)
    function(*begins, starts.ctypes.data, sizes.ctypes.data, len(run), found.ctypes.data)
    return [int(checksum) for checksum in found]


def _copy_checked(source: ByteArray, target: ByteArray, place: Place) -> int:
    checksum = 0
    end = place.start + place.size
    for start in range(place.start, end, _PIECE_BYTES):
        piece = slice(start, min(start + _PIECE_BYTES, end))
        np.copyto(target[piece], source[piece])
        checksum = crc32(target[piece].data, checksum)
    return checksum


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _runs(places: Sequence[Place]) -> list[Sequence[Place]]:
    """Consecutive places, about _RUN_BYTES together."""
    runs: list[Sequence[Place]] = []
    first = 0
    for index, place in enumerate(places):
        if place.start + place.size - places[first].start >= _RUN_BYTES or index == len(places) - 1:
            runs.append(places[first : index + 1])
            first = index + 1
    return runs


def spread(work: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """`work` of every item, in order, on at most `threads` threads and no more than there are cores."""
    count = max(1, min(threads, core_count(), len(items)))
    if count == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(count, thread_name_prefix="weights") as pool:
        return list(pool.map(work, items))
