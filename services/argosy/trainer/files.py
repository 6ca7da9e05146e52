"""Files that are either whole and on the disk, or absent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from argosy.types.errors import storage_error


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make the file under another name, sync it, and move it to its place.

    A kill at any point leaves the old file or none, never half of one (case E3). A full disk is a StorageError, and
    the unfinished file is removed.
    """
    partial = path.with_name(f".{path.name}.partial")
    from safetensors import SafetensorError

    try:
        write(partial)
        sync_file(partial)
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        raise storage_error(error, path) from error
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Wait until the file's bytes are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until the folder's names are on the disk."""
    sync_file(path)
