"""What an earlier life of the run left at the rollout servers is ended, before the next one begins its work there."""

from __future__ import annotations

import asyncio
import logging

from argosy.controller.context import RunContext
from argosy.types.errors import ArgosyError

log = logging.getLogger(__name__)


async def end_abandoned(ctx: RunContext) -> int:
    """End all samples that the servers still run, and let those sample that were paused or asleep; how many ended.

    A weight update that was under way is replaced by the next sync. A server that doesn't answer is left to that sync,
    which knows what to do about it.
    """

    async def end(member: str) -> int:
        server = ctx.services.rollouts[member]
        try:
            async with asyncio.timeout(ctx.deadline_s):
                if ctx.config.argosy.colocated:
                    await server.wake(ctx.mutation("take-over-wake", member))
                count = await server.abort(None, ctx.mutation("take-over-abort", member))
                await server.resume(ctx.mutation("take-over-resume", member))
                return count
        except (ArgosyError, TimeoutError) as error:
            log.warning("%s could not be told that its samples are abandoned: %s", member, error)
            return 0

    members = sorted(set(ctx.services.rollouts) - ctx.services.lost)
    return sum(await asyncio.gather(*(end(member) for member in members)))
