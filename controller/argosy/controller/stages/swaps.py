"""What becomes of the samples at a server whose weights are swapped: `argosy.weight_sync.while_generating`.

- keep: nothing. An engine swaps between two decode steps, and what runs goes on under the new weights.
- abort: the server is paused and its samples are ended; each goes on from its tokens, on any server.
- finish: the server gets no more samples from the moment that weights begin to come, and swaps when it has none.

One server at a time, so to say: while one is held, others go on with what they have, old weights or new.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType

from argosy.controller.context import RunContext
from argosy.controller.stages.phases import Deadline
from argosy.controller.stages.rollout import RolloutStage
from argosy.types.errors import ArgosyError

log = logging.getLogger(__name__)

HOLDER = "swap"
"""As whom a swap holds a server's places."""
RESUME_S = 5.0
"""For a server to go on whose sync has failed."""


class Swap:
    """One server's sync, around all its phases. A server whose sync fails is given up: its samples go on elsewhere.

    Args:
        ctx: The run.
        rollout: Who sends samples.
        member: The server.
        names: Of the sync, for request ids.
    """

    def __init__(self, ctx: RunContext, rollout: RolloutStage, member: str, names: tuple[object, ...]) -> None:
        self._ctx = ctx
        self._rollout = rollout
        self._places = rollout.singles.places
        self._member = member
        self._server = ctx.services.rollouts[member]
        self._names = names
        self._mode = ctx.config.argosy.weight_sync.while_generating
        self._paused = False

    async def __aenter__(self) -> Swap:
        return self

    def begin(self) -> None:
        """The weights begin to come. A server that still waits for its turn goes on with samples."""
        if self._mode == "finish":
            self._places.hold(self._member, HOLDER)

    async def settle(self, deadline: Deadline) -> None:
        """The weights are there: let the server come to a state in which they may be swapped in.

        The time that samples are waited for is none of the sync's, and has a bound of its own.
        """
        if self._mode == "finish":
            try:
                async with deadline.suspended(), asyncio.timeout(self._ctx.deadline_s):
                    await self._places.empty(self._member)
            except TimeoutError:
                count = self._places.outstanding(self._member)
                log.warning("%s still runs %d samples when its weights are swapped: they end", self._member, count)
                await self._abort(deadline)
        elif self._mode == "abort":
            self._places.hold(self._member, HOLDER)
            await self._abort(deadline)

    async def swapped(self) -> None:
        """The new weights serve: go on."""
        if self._paused:
            await self._server.resume(self._ctx.mutation("swap-resume", *self._names))
            self._paused = False

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._rollout.give_up(self._member)
        try:
            if self._paused and isinstance(error, Exception):
                async with asyncio.timeout(RESUME_S):  # it may be frozen: whoever catches it up resumes it
                    await self._server.resume(self._ctx.mutation("swap-give-up", *self._names))
        except (ArgosyError, TimeoutError) as away:
            log.warning("%s stays paused after its sync has failed: %s", self._member, away)
        finally:
            self._places.release(self._member, HOLDER)

    async def _abort(self, deadline: Deadline) -> None:
        self._paused = True  # even if the answer is lost
        self._rollout.singles.interrupt(self._member)
        async with deadline.bound(f"{self._member} has not ended its samples"):
            await self._server.pause("abort", self._ctx.mutation("swap-pause", *self._names))
