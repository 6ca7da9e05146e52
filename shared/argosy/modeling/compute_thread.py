"""One thread in which a model computes, so that the event loop stays free and calls never overlap."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from argosy.types.errors import DeadlineError, OverloadedError, UnavailableError

R = TypeVar("R")


class ComputeThread:
    """A single worker thread with a bounded queue.

    Args:
        name: Shown in messages and thread dumps.
        threads: PyTorch's intra-op threads in this thread; 0 leaves PyTorch's own choice.
        max_pending: Calls waiting or running at most; one more gets OverloadedError.
    """

    def __init__(self, name: str, *, threads: int = 0, max_pending: int = 16) -> None:
        self._executor = ThreadPoolExecutor(1, name, initializer=_set_threads, initargs=(threads,))
        self._name = name
        self._max_pending = max_pending
        self._lock = threading.Lock()
        self._pending = 0
        self._closed = False

    async def run(self, call: Callable[[], R], *, deadline_s: float | None = None) -> R:
        """Run `call` in the thread, after those before it.

        A call that has started goes on to its end even if the caller gives up; one that has not is dropped. Raises
        DeadlineError after `deadline_s` seconds, OverloadedError when the queue is full, and whatever `call` raises.
        """
        future = asyncio.wrap_future(self._submit(call))
        try:
            done, _ = await asyncio.wait({future}, timeout=deadline_s)
        except asyncio.CancelledError:
            future.cancel()
            raise
        if not done:
            future.cancel()
            raise DeadlineError(f"{self._name} did not finish within {deadline_s:g} s")
        return future.result()

    def _submit(self, call: Callable[[], R]) -> Future[R]:
        with self._lock:
            if self._closed:
                raise UnavailableError(f"{self._name} is closed")
            if self._pending >= self._max_pending:
                raise OverloadedError(f"{self._name} has {self._pending} calls waiting, its limit")
            self._pending += 1
        context = contextvars.copy_context()  # so that spans made inside belong to the caller's trace
        future = self._executor.submit(context.run, call)
        future.add_done_callback(self._finished)
        return future

    def _finished(self, _: Future[Any]) -> None:
        with self._lock:
            self._pending -= 1

    def close(self, *, wait: bool = True) -> None:
        """Drop what waits, let what runs finish; wait for that, if it isn't known to hang. Repeating does no harm."""
        with self._lock:
            self._closed = True
        self._executor.shutdown(wait=wait, cancel_futures=True)


def _set_threads(threads: int) -> None:
    if threads > 0:
        import torch

        torch.set_num_threads(threads)
