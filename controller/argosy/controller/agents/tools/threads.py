"""Blocking calls on threads that nobody waits for at the interpreter's end.

A call that is cancelled or out of time goes on: a thread can't be ended. It keeps its place among the bounded number of
threads until it returns, so that hanging tools can't take more and more of the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any


class CallThreads:
    """At most `limit` blocking calls at one time."""

    def __init__(self, limit: int) -> None:
        self._free = asyncio.Semaphore(limit)

    async def run(self, call: Callable[[], Any]) -> Any:
        """The call's result, or what it raises."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def done(value: Any, error: BaseException | None) -> None:
            self._free.release()
            if result.done():  # the caller has given up
                return
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)

        def work() -> None:
            value, failure = None, None
            try:
                value = context.run(call)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                failure = (
                    error if not isinstance(error, StopIteration) else RuntimeError("the tool raised StopIteration")
                )
            if not loop.is_closed():
                loop.call_soon_threadsafe(done, value, failure)

        threading.Thread(target=work, name="argosy-tool", daemon=True).start()
        return await result
