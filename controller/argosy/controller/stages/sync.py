"""Weights out: the trainer freezes a version, and every rollout server takes it, all or nothing per server."""

from __future__ import annotations

import asyncio
import logging

from argosy.controller.context import RunContext
from argosy.controller.stages.rollout import RolloutStage
from argosy.types.errors import ArgosyError, UnavailableError
from argosy.types.ids import PolicyVersion
from argosy.types.records import WeightsManifest

log = logging.getLogger(__name__)

TRANSPORT = "stream"


async def publish_and_sync(ctx: RunContext, rollout: RolloutStage, step: int) -> PolicyVersion:
    """Publish the trainer's weights as (lineage, step) and bring every rollout server to that version.

    A server that fails keeps its old version and is out of use until a later sync to it succeeds. Raises
    UnavailableError when no server took the version.
    """
    mutation = ctx.mutation("publish", step, expected_step=ctx.trainer_step("actor", step))
    manifest = await ctx.services.policy.publish_weights(ctx.lineage, step, mutation)
    await rollout.wake(step)
    sync_id = f"{ctx.lineage}-{step}"
    members = rollout.members()
    results = await asyncio.gather(
        *(_sync_one(ctx, member, sync_id, manifest) for member in members), return_exceptions=True
    )
    failures: dict[str, BaseException] = {}
    for member, result in zip(members, results, strict=True):
        if result is None:
            rollout.usable.add(member)
        elif isinstance(result, (ArgosyError, TimeoutError)):
            rollout.usable.discard(member)
            failures[member] = result
            ctx.count("sync/failed_members")
            log.warning("weight sync %s to %s failed: %s", sync_id, member, result)
        else:
            raise result
    if not members:
        raise UnavailableError(f"no rollout server is left that could take the weights of step {step}")
    if len(failures) == len(members):
        member, failure = next(iter(failures.items()))
        raise UnavailableError(f"no rollout server took the weights of step {step}; {member}: {failure}") from failure
    rollout.version = manifest.version
    return manifest.version


async def _sync_one(ctx: RunContext, member: str, sync_id: str, manifest: WeightsManifest) -> None:
    server = ctx.services.rollouts[member]
    async with asyncio.timeout(ctx.deadline_s):
        await server.init_weight_transfer(TRANSPORT, ctx.mutation("sync-init", sync_id, member))
        await server.start_weight_update(sync_id, manifest, ctx.mutation("sync-start", sync_id, member))
        source = ctx.services.policy.weight_source()
        await server.update_weights(sync_id, source, ctx.mutation("sync-update", sync_id, member))
        served = await server.finish_weight_update(sync_id, ctx.mutation("sync-finish", sync_id, member))
    if served != manifest.version:
        raise UnavailableError(f"{member} serves {served.short} after a sync of {manifest.version.short}")
