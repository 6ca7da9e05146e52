"""What goes to the rollout servers: all weights, or an adapter alone to servers that have what is under it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from argosy.controller.context import RunContext
from argosy.controller.stages.phases import Deadline
from argosy.types.errors import ArgosyError, NotFoundError, StateError
from argosy.types.records import WeightsForm, WeightsManifest
from argosy.weightsync.adapter import MISSING_BASE, NO_LONE_ADAPTER

log = logging.getLogger(__name__)

Send = Callable[[Sequence[str], str, WeightsManifest], Awaitable[Sequence[int | BaseException]]]
"""(members, sync id, manifest): bring those servers to what is published; for each its bytes, or what went wrong."""


async def choose_form(ctx: RunContext, members: Sequence[str]) -> WeightsForm:
    """ADAPTER, where a LoRA adapter is trained, argosy.weight_sync.adapter_only asks for it or allows it, and every
    server's engine takes one. A server that can't be asked decides nothing: its sync will fail by itself."""
    asked = ctx.config.argosy.weight_sync.adapter_only
    if asked == "off" or not ctx.config.actor_rollout_ref.model.uses_lora:
        return WeightsForm.MERGED
    if asked == "on":
        return WeightsForm.ADAPTER
    if ctx.config.argosy.colocated and ctx.config.argosy.sleep_level == 2:
        return WeightsForm.MERGED  # what is under the adapter would have to go with it each time
    found = await asyncio.gather(*(_takes_adapters(ctx, member) for member in members))
    return WeightsForm.ADAPTER if all(found) else WeightsForm.MERGED


async def publish(ctx: RunContext, step: int, form: WeightsForm, *why: str) -> WeightsManifest:
    """Have the trainer freeze its weights. `why` tells apart several calls of one step.

    An adapter whose modules differ in rank or scaling can't go alone: merged weights do, unless adapter_only=on.
    """
    mutation = ctx.mutation("publish", step, *why, expected_step=ctx.trainer_step("actor", step))
    try:
        return await ctx.services.policy.publish_weights(ctx.lineage, step, mutation, form=form)
    except StateError as error:
        asked = ctx.config.argosy.weight_sync.adapter_only
        if asked == "on" or error.metadata.get("state") != NO_LONE_ADAPTER:
            raise
        log.info("step %d: merged weights go to the servers: %s", step, error)
        return await publish(ctx, step, WeightsForm.MERGED, "merged", *why)


async def with_bases(
    ctx: RunContext,
    members: Sequence[str],
    sync_id: str,
    manifest: WeightsManifest,
    step: int,
    send: Send,
    deadline: Deadline,
) -> WeightsManifest:
    """Give the base of an adapter to the servers that lack it (newcomers, and those that began with other weights).

    Returns the adapter's manifest, which is what the trainer has published in the end. A server that doesn't take the
    base will refuse the adapter too, and be out of use.
    """
    if manifest.adapter is None:
        return manifest
    asked = await asyncio.gather(*(_lacks_base(ctx, member, sync_id, manifest, deadline) for member in members))
    lacking = [member for member in asked if member]
    if not lacking:
        return manifest
    base = await publish(ctx, step, WeightsForm.BASE, "base")
    results = await send(lacking, f"{sync_id}-base", base)
    for member, result in zip(lacking, results, strict=True):
        if isinstance(result, (ArgosyError, TimeoutError)):
            log.warning("%s did not take the weights under the adapter: %s", member, result)
        elif isinstance(result, BaseException):
            raise result
    return await publish(ctx, step, WeightsForm.ADAPTER, "after-base")


async def _takes_adapters(ctx: RunContext, member: str) -> bool:
    try:
        async with asyncio.timeout(ctx.deadline_s):
            status = await ctx.services.rollouts[member].status()
    except (ArgosyError, TimeoutError):
        return True
    return status.capabilities.get("adapter_sync") == "true"


async def _lacks_base(ctx: RunContext, member: str, sync_id: str, manifest: WeightsManifest, deadline: Deadline) -> str:
    """The member, if it refuses the adapter for that reason; "" otherwise."""
    mutation = ctx.mutation("sync-probe", sync_id, member)
    try:
        async with deadline.bound(f"{member} has not told what it holds"):
            await ctx.services.rollouts[member].start_weight_update(sync_id, manifest, mutation)
    except NotFoundError as error:
        return member if error.metadata.get("missing") == MISSING_BASE else ""
    except ArgosyError:
        return ""  # what else is wrong, the sync itself meets and reports
    return ""
