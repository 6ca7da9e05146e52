"""Rollout servers that come and go while the run goes on: brought to the current weights first, then into use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from argosy.controller.context import RunContext
from argosy.controller.stages.rollout import RolloutStage
from argosy.types.errors import ArgosyError
from argosy.types.records import Member, MemberState

log = logging.getLogger(__name__)

CatchUp = Callable[[RunContext, RolloutStage, str], Awaitable[None]]
"""Brings one server to the version that the fleet holds, and raises ArgosyError or TimeoutError if it can't."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""Between two tries to bring a server in; the pauses double."""
GONE_OR_SILENT = (ArgosyError, TimeoutError)
STANDS_STILL = "answers, but its engine stands still"
"""What `argosy members` says of one that is quarantined."""


class Newcomers:
    """Hears of the roster's changes on behalf of a RolloutStage.

        joined ──► catch_up ──► says "ready" with the current version ──► in use
        draining ──► gets nothing new; what it ends early goes on elsewhere, from its tokens
        left ──► all that it had goes on elsewhere, at once

    A server that can't be brought in is tried again for as long as it is there; nobody waits for it.

    Args:
        ctx: The run.
        rollout: What uses the servers.
        catch_up: See CatchUp.
    """

    def __init__(self, ctx: RunContext, rollout: RolloutStage, catch_up: CatchUp) -> None:
        self._ctx = ctx
        self._rollout = rollout
        self._catch_up = catch_up
        self._tasks: dict[str, asyncio.Task[None]] = {}
        roster = ctx.services.roster
        self._unsubscribe: Callable[[], None] | None = None
        if roster is not None:
            self._unsubscribe = roster.subscribe(self)
            for member in map(roster.member, roster.clients):
                if member is not None and member.state is MemberState.DRAINING:
                    rollout.drains(member.member_id)

    def joined(self, member: Member) -> None:
        """See Listener."""
        self._ctx.count("rollout/joined_servers")
        self._rollout.joins(member.member_id)
        if member.state is MemberState.DRAINING:
            self._rollout.drains(member.member_id)
            return
        self._begin(member.member_id)

    def changed(self, member: Member) -> None:
        """See Listener."""
        if member.state is MemberState.DRAINING:
            log.info("%s drains: it gets no more samples", member.member_id)
            self._ctx.count("rollout/drained_servers")
            self._end(member.member_id)
            self._rollout.drains(member.member_id)
        elif member.state is MemberState.QUARANTINED:
            self._end(member.member_id)
            self._rollout.give_up(member.member_id)
            self._ctx.vitals.failed(member.member_id, STANDS_STILL)
            log.warning("%s %s: it gets no more samples until it moves", member.member_id, STANDS_STILL)
        elif member.member_id not in self._rollout.usable:
            self._begin(member.member_id)

    def left(self, member: Member) -> None:
        """See Listener."""
        if member.state is not MemberState.DRAINING:
            self._ctx.count("rollout/lost_servers")
        self._end(member.member_id)
        self._rollout.forget(member.member_id)

    async def close(self) -> None:
        """Hear no more of the roster, and bring nobody in any more."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, member: str) -> None:
        if member not in self._tasks:
            task = self._tasks[member] = asyncio.create_task(self._bring_in(member), name=f"bring in {member}")
            task.add_done_callback(lambda done: self._done(member, done))

    def _end(self, member: str) -> None:
        task = self._tasks.pop(member, None)
        if task is not None:
            task.cancel()

    def _done(self, member: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(member) is task:
            del self._tasks[member]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s can't be brought in: a defect", member, exc_info=error)

    async def _bring_in(self, member: str) -> None:
        pause_s = FIRST_PAUSE_S
        await self._rollout.has_version()
        while not await self._rollout.take_in(member):
            try:
                await self._catch_up(self._ctx, self._rollout, member)
                if await self._rollout.take_in(member):
                    break
            except GONE_OR_SILENT as error:
                self._ctx.count("rollout/failed_catch_ups")
                log.warning("%s could not be brought to the current weights: %s", member, error)
            await asyncio.sleep(pause_s)  # else the weights have moved on meanwhile, or it isn't ready all the same
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        log.info("%s is in use", member)
        await self._rollout.singles.refresh()
