"""Memory that another process of the same user can map: an anonymous memory file, which has no name to be left behind.

    sender     file = MemoryFile.create(size)     → file.array is ordinary memory, file.path leads to it
    receiver   mapped = map_file(path, size, file_id)

`memfd_create` in place of files below /dev/shm: nothing is left when a process is killed, no quota of a container's
64 MB /dev/shm applies, and the file can be sealed against shrinking, so that a reader never meets a bus error. Another
process reaches it as /proc/PID/fd/N, which the kernel allows to the same user (and root) only.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import threading
import weakref

import numpy as np

from argosy.types.errors import NotFoundError
from argosy.weightsync.tensors import ByteArray

_LOG = logging.getLogger(__name__)
_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0) | getattr(fcntl, "F_SEAL_SEAL", 0)
_SUPPORTED = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


class MemoryFile:
    """A mapped memory file of a fixed size; the file goes with this object, the memory with the last view of it."""

    def __init__(self, size_bytes: int) -> None:
        """`size_bytes` ≥ 1, zeroed. OSError if the kernel has no room."""
        descriptor = os.memfd_create("argosy-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        self.array: ByteArray = np.frombuffer(mmap.mmap(descriptor, size_bytes), np.uint8)
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self.file_id = _identity(descriptor)
        """Tells this file from another that got the same path later."""


def allocate(size_bytes: int) -> tuple[ByteArray, MemoryFile | None]:
    """Memory of a size, in a file where the system can do that and lets us; else other processes can't map it."""
    if size_bytes == 0 or not _SUPPORTED:
        return np.empty(size_bytes, np.uint8), None
    try:
        file = MemoryFile(size_bytes)
    except OSError as error:  # a limit on file sizes (RLIMIT_FSIZE) counts here too, and sandboxes forbid memory files
        _LOG.warning("%d bytes of memory can't be shared with other processes: %s", size_bytes, error)
        return np.empty(size_bytes, np.uint8), None
    return file.array, file


class KeptMapping:
    """The file mapped last, for a reader that maps the same one again and again: mapping costs a quarter of a copy.

    A sender that dies leaves its memory mapped here until another file is asked for.
    """

    def __init__(self, *, writable: bool = False) -> None:
        self._writable = writable
        self._key: tuple[str, int, str] | None = None
        self._array: ByteArray | None = None
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Keep nothing; the memory goes with the last view of it."""
        with self._lock:
            self._array, self._key = None, None

    def get(self, path: str, size_bytes: int, file_id: str) -> ByteArray:
        """As `map_file`. Raises as it does; also when the file that is mapped already has gone."""
        with self._lock:
            key = (path, size_bytes, file_id)
            if self._array is None or key != self._key or not _is_there(path, file_id):
                self._array = None  # before the new one: never two
                self._array = map_file(path, size_bytes, file_id, writable=self._writable)
                self._key = key
            return self._array


def map_file(path: str, size_bytes: int, file_id: str, *, writable: bool = False) -> ByteArray:
    """Map another process's memory file. The mapping outlives that process.

    Raises NotFoundError if the file (or its process) has gone, is another one by now, or can't be seen from here.
    """
    try:
        descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError as error:
        raise NotFoundError(
            f"the memory file {path} can't be opened ({error.strerror}): its process has gone, or is another user's or "
            "in another container",
            path=path,
        ) from error
    try:
        if _identity(descriptor) != file_id or os.fstat(descriptor).st_size != size_bytes:
            raise NotFoundError(f"the memory file {path} is another one than was offered: its sender has gone on")
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        flags = mmap.MAP_SHARED | getattr(
            mmap, "MAP_POPULATE", 0
        )  # all page tables at once: a fault costs a copy's time
        return np.frombuffer(mmap.mmap(descriptor, size_bytes, flags, protection), np.uint8)
    finally:
        os.close(descriptor)


def _is_there(path: str, file_id: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return f"{status.st_dev}:{status.st_ino}" == file_id


def _identity(descriptor: int) -> str:
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"
