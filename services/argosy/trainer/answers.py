"""A mutation is done once, however often it is asked for (AIP-155)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from argosy.types.errors import DeadlineError
from argosy.types.records import Mutation

R = TypeVar("R")
_Key = tuple[str, str, int, str, int | None]


class Answers:
    """First answers by (method, run, term, request id, expected step), as the gate of a server keys them.

    The gate does this for callers over gRPC; here it is for callers in the same process. Another term is another
    leader, whose calls are its own.

    A repeat joins the call that still runs, or gets its answer. A failed call is forgotten, so that a repeat tries
    again. The newest `limit` answers are kept; older repeats are caught by `expected_step`.
    """

    def __init__(self, limit: int = 128) -> None:
        self._limit = limit
        self._calls: dict[_Key, asyncio.Task[Any]] = {}

    async def once(self, method: str, ctx: Mutation, start: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """The answer of `start()` for this method and context, which goes on even if this caller gives up.

        Raises DeadlineError after ctx.deadline_s, and whatever the call raises.
        """
        key = (method, ctx.run_id, ctx.term, ctx.request_id, ctx.expected_step)
        call = self._calls.get(key)
        if call is None:
            call = asyncio.create_task(start())
            self._calls[key] = call
            call.add_done_callback(lambda done: self._settle(key, done))
        done, _ = await asyncio.wait({call}, timeout=ctx.deadline_s)
        if not done:
            raise DeadlineError(
                f"{method} did not finish within {ctx.deadline_s:g} s; it goes on, and a repeat of request "
                f"{ctx.request_id!r} waits for it"
            )
        return cast(R, call.result())

    def forget(self, *methods: str) -> None:
        """Drop the finished answers of the named methods (of all, if none is named): they are no longer true."""
        for key, call in list(self._calls.items()):
            if call.done() and (not methods or key[0] in methods):
                del self._calls[key]

    def _settle(self, key: _Key, call: asyncio.Task[Any]) -> None:
        if call.cancelled() or call.exception() is not None:
            self._calls.pop(key, None)
            return
        finished = [key for key, call in self._calls.items() if call.done()]
        for old in finished[: max(0, len(finished) - self._limit)]:
            del self._calls[old]
