"""Servers that a sync has not reached: nobody waits for them again until they answer, and then they are caught up."""

from __future__ import annotations

import asyncio
import logging

from argosy.controller.context import RunContext
from argosy.controller.stages.phases import brief
from argosy.controller.stages.relay import catch_up
from argosy.controller.stages.rollout import RolloutStage
from argosy.roles.rollout import Rollout
from argosy.types.errors import ArgosyError, FencedError, UnavailableError

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
"""Between two looks at a server that is left out; the pauses double."""


def leave_out(ctx: RunContext, rollout: RolloutStage, member: str, failure: Exception) -> None:
    """Use a server no more, and let later syncs pass it over; it is watched until it is back, or gone for good."""
    log.warning("%s is left out until it answers again; its weight sync failed: %s", member, brief(failure))
    rollout.turns.left_out.add(member)
    bring_back(ctx, rollout, member)


def bring_back(ctx: RunContext, rollout: RolloutStage, member: str) -> None:
    """Use a server no more until it holds the current weights, which it is brought as soon as it answers."""
    rollout.give_up(member)
    before = rollout.turns.watches.pop(member, None)
    if before is not None:
        before.cancel()
    task = asyncio.create_task(_watch(ctx, rollout, member), name=f"wait for {member}")
    rollout.turns.watches[member] = task
    task.add_done_callback(lambda done: _ended(rollout, member, done))


def _ended(rollout: RolloutStage, member: str, task: asyncio.Task[None]) -> None:
    if rollout.turns.watches.get(member) is task:
        del rollout.turns.watches[member]
        rollout.turns.left_out.discard(member)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s is not watched any more: %s", member, brief(error), exc_info=error)


async def _watch(ctx: RunContext, rollout: RolloutStage, member: str) -> None:
    """Until the server is in use again, or has left, or another one has come under its id."""
    pause_s, told = FIRST_PAUSE_S, ""
    server = _server(ctx, member)
    while server is not None and server is _server(ctx, member) and member in rollout.members():
        try:
            if await _bring_back(ctx, rollout, member, server):
                log.info("%s is back, with the current weights", member)
                await rollout.singles.refresh()
                return
        except FencedError as error:
            log.warning("%s is not brought back: %s", member, brief(error))
            return
        except (ArgosyError, TimeoutError) as error:
            if (text := brief(error)) != told:
                told = text
                log.info("%s is still away: %s", member, text)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def _bring_back(ctx: RunContext, rollout: RolloutStage, member: str, server: Rollout) -> bool:
    status = await server.status()
    if status.state in ("stuck", "draining", "asleep"):
        return False
    rollout.turns.left_out.discard(member)  # whatever becomes of this: the next sync of all takes it along
    if status.version != rollout.version or status.state != "ready":
        await catch_up(ctx, rollout, member)
    return await rollout.take_in(member)


def _server(ctx: RunContext, member: str) -> Rollout | None:
    try:
        return ctx.services.rollouts[member]
    except (UnavailableError, KeyError):
        return None
