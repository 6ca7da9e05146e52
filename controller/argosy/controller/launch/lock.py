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
        self._take(fcntl.LOCK_EX)

    def share(self) -> None:
        """With other controllers of one fleet, which the terms of their leaders keep apart (fence.py): a leader that
        stands still would keep a lock of its own. Raises StateError when a process has the folder for itself."""
        self._take(fcntl.LOCK_SH)

    def _take(self, kind: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
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
