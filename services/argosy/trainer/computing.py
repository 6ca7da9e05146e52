"""The trainer's compute thread, and what happens to its calls when a backend's other processes have failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar, runtime_checkable

from argosy.modeling.compute_thread import ComputeThread
from argosy.types.errors import ArgosyError

R = TypeVar("R")

_LAST_WORD_S = 2.0
"""A call whose backend has failed gets so long to end by itself; then its caller is answered without it."""


@runtime_checkable
class Fallible(Protocol):
    """A backend whose work can end for good, beside its calls: it has processes that die."""

    @property
    def failure(self) -> Future[ArgosyError]:
        """Gets the first cause as its *result*; never an exception."""
        ...


@runtime_checkable
class Closable(Protocol):
    """A backend that holds more than memory."""

    def close(self) -> None:
        """End its processes and groups. Repeating it does no harm."""
        ...


class Computing:
    """A compute thread whose callers also learn of a failure that the thread doesn't come back from.

    Args:
        threads: PyTorch's intra-op threads; 0 leaves PyTorch's own choice.
    """

    def __init__(self, threads: int = 0) -> None:
        self._thread = ComputeThread("trainer", threads=threads)
        self._backend: Any = None
        self._failure: asyncio.Future[ArgosyError] | None = None

    def watch(self, backend: Any) -> None:
        """From now on, this backend's failure ends calls, and `close` closes it."""
        self._backend = backend

    async def run(self, call: Callable[[], R], *, deadline_s: float | None = None) -> R:
        """As `ComputeThread.run`. Raises the backend's failure if the call hangs in it."""
        failure = self._failing()
        if failure is None:
            return await self._thread.run(call, deadline_s=deadline_s)
        work = asyncio.ensure_future(self._thread.run(call, deadline_s=deadline_s))
        try:
            both: set[asyncio.Future[Any]] = {work, failure}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait({work}, timeout=_LAST_WORD_S)
            if not work.done():
                raise failure.result()
            return work.result()
        finally:
            work.cancel()

    async def wait_failed(self) -> BaseException:
        """Return why the backend can't work any more; never, as long as it can."""
        failure: asyncio.Future[Any] = self._failing() or asyncio.get_running_loop().create_future()
        found: BaseException = await asyncio.shield(failure)
        return found

    def close(self) -> None:
        """Let a running call finish (not after a failure: it may hang), drop the waiting ones, close the backend."""
        failed = isinstance(self._backend, Fallible) and self._backend.failure.done()
        self._thread.close(wait=not failed)
        if isinstance(self._backend, Closable):
            self._backend.close()

    def _failing(self) -> asyncio.Future[ArgosyError] | None:
        if self._failure is None and isinstance(self._backend, Fallible):
            self._failure = asyncio.wrap_future(self._backend.failure)
        return self._failure
