"""One launcher per run folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from argosy.types.errors import StateError


class RunFolderLock:
    """An advisory lock on `<run folder>/.lock` that ends with the process, however that ends."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / ".lock"
        self._fd: int | None = None

    def acquire(self) -> None:
        """Raises StateError when another live process has the folder."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise StateError(
                f"another run (process {owner}) is using {self._path.parent}: wait for it, stop it, or give this run "
                "its own folder with trainer.default_local_dir=…",
                pid=owner,
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Let the folder go. Safe to call twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
