"""Which save was begun last, and waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future

from argosy.types.errors import DeadlineError, StateError


class Saves:
    """The save that was begun last; its files are written by others."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._files: Future[list[str]] = Future()

    def began(self, path: str, files: Future[list[str]]) -> None:
        """A save to `path` is being written; `files` has its result."""
        self._path, self._files = path, files

    async def finished(self, path: str, deadline_s: float | None) -> Sequence[str]:
        """The save's files, once they are written. It goes on if the caller gives up.

        Raises what the writing raised; StateError if the last save was to another place; DeadlineError.
        """
        if self._path != path:
            last = "there was none" if self._path is None else f"the last one is to {self._path!r}"
            raise StateError(f"no save to {path!r} is under way: {last}")
        written = asyncio.wrap_future(self._files)
        done, _ = await asyncio.wait({written}, timeout=deadline_s)
        if not done:
            raise DeadlineError(f"the checkpoint was not written within {deadline_s:g} s; it is still being written")
        return written.result()
