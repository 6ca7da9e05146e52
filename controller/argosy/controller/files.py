"""Writing files so that a crash leaves either the old content or the new one, never half of it."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

from argosy.types.errors import ArgosyError

_BLOCK = 1 << 20


class DiskFullError(ArgosyError):
    """No room left, or not allowed to write; the message says where and what to do."""


def explain_os_error(error: OSError, path: Path) -> ArgosyError:
    """Turn an OSError of a write into one clear message."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"no space left while writing {path}: free some, or put the run elsewhere with trainer.default_local_dir=…;"
            " what was written before is intact, and resume continues from the last complete checkpoint"
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return DiskFullError(f"not allowed to write {path}: {error.strerror}; choose another trainer.default_local_dir")
    return ArgosyError(f"could not write {path}: {error}")


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: written beside it, synced, renamed. Raises ArgosyError with a clear message."""
    temporary = path.with_name(path.name + ".partial")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise explain_os_error(error, path) from error


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
