"""Writing files so that a crash leaves either the old content or the new one, never half of it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from argosy.controller.fence import OPEN, Fence
from argosy.types.errors import FencedError, storage_error

_BLOCK = 1 << 20


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes | memoryview, fence: Fence = OPEN) -> None:
    """Replace `path` by `data`: written beside it, synced, renamed.

    Raises StorageError with a clear message; FencedError if the fence of the run folder lets nothing through any more.
    """
    temporary = path.with_name(f"{path.name}{fence.tag}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with fence.writing():
            temporary.replace(path)
            sync_folder(path.parent)
    except FencedError:
        temporary.unlink(missing_ok=True)
        raise
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise storage_error(error, path) from error


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
