"""Weights out: the trainer freezes a version, and every rollout server takes it, all or nothing per server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from argosy.controller.context import RunContext
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.weights_form import choose_form, publish, with_bases
from argosy.types.errors import ArgosyError, CorruptDataError, UnavailableError
from argosy.types.ids import PolicyVersion
from argosy.types.records import TransferOffer, WeightsManifest
from argosy.weightsync.transports.base import METRIC

log = logging.getLogger(__name__)

AUTO_TRANSPORT = "stream"
"""What argosy.weight_sync.transport=auto means."""


async def publish_and_sync(ctx: RunContext, rollout: RolloutStage, step: int) -> PolicyVersion:
    """Publish the trainer's weights as (lineage, step) and bring every rollout server to that version.

    A server that fails keeps its old version and is out of use until a later sync to it succeeds. Raises
    UnavailableError when no server took the version.
    """
    members = rollout.members()
    manifest = await publish(ctx, step, await choose_form(ctx, members))
    await rollout.wake(step)
    sync_id = f"{ctx.lineage}-{step}"
    members = rollout.members()
    manifest = await with_bases(ctx, members, sync_id, manifest, step, partial(_send_to, ctx))
    results = await _send_to(ctx, members, sync_id, manifest)
    failures: dict[str, BaseException] = {}
    for member, result in zip(members, results, strict=True):
        if isinstance(result, int):
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
    ctx.measured["sync/transferred_mb"] = sum(result for result in results if isinstance(result, int)) / 1e6
    ctx.measured["sync/manifest_mb"] = sum(t.size_bytes for t in manifest.tensors if not t.tied_to) / 1e6
    rollout.version = manifest.version
    return manifest.version


async def _send_to(
    ctx: RunContext, members: Sequence[str], sync_id: str, manifest: WeightsManifest
) -> list[int | BaseException]:
    """Bring servers to what is published; for each the bytes that it took, or what went wrong with it.

    Damage is tried again once: a sender on disk then mends what it wrote, and no server takes a delta twice.
    """
    results = dict(zip(members, await _transfer(ctx, members, sync_id, manifest, 1), strict=True))
    damaged = [member for member, result in results.items() if isinstance(result, CorruptDataError)]
    if damaged:
        log.warning("weight sync %s brought damaged bytes to %s, once more: %s", sync_id, damaged, results[damaged[0]])
        ctx.count("sync/damaged", len(damaged))
        results |= zip(damaged, await _transfer(ctx, damaged, sync_id, manifest, 2), strict=True)
    return list(results.values())


async def _transfer(
    ctx: RunContext, members: Sequence[str], sync_id: str, manifest: WeightsManifest, attempt: int
) -> list[int | BaseException]:
    asked = ctx.config.argosy.weight_sync.transport
    transport = AUTO_TRANSPORT if asked == "auto" else asked
    policy, count = ctx.services.policy, max(1, len(members))
    try:
        offers = await policy.open_transfer(transport, sync_id, count, ctx.mutation("sync-open", sync_id, attempt))
        _measure(ctx, offers)
        work = [_sync_one(ctx, m, sync_id, manifest, offer, attempt) for m, offer in zip(members, offers, strict=False)]
        return await asyncio.gather(*work, return_exceptions=True)
    except (ArgosyError, TimeoutError) as error:
        return [error] * len(members)
    finally:
        await policy.close_transfer(sync_id, ctx.mutation("sync-close", sync_id, attempt))


def _measure(ctx: RunContext, offers: Sequence[TransferOffer]) -> None:
    """Keep what the sender tells of the transfer: how small a delta is, how fast it was made …"""
    for name, value in (offers[0].options if offers else {}).items():
        if name.startswith(METRIC):
            ctx.measured[f"sync/{name.removeprefix(METRIC)}"] = float(value)


async def _sync_one(
    ctx: RunContext, member: str, sync_id: str, manifest: WeightsManifest, offer: TransferOffer, attempt: int
) -> int:
    server, names = ctx.services.rollouts[member], (sync_id, member, attempt)
    async with asyncio.timeout(ctx.deadline_s):
        await server.init_weight_transfer(offer.transport, ctx.mutation("sync-init", *names))
        await server.start_weight_update(sync_id, manifest, ctx.mutation("sync-start", *names))
        source = ctx.services.policy.weight_source()
        byte_count = await server.update_weights(sync_id, source, ctx.mutation("sync-update", *names), offer)
        served = await server.finish_weight_update(sync_id, ctx.mutation("sync-finish", *names))
    if served != manifest.version:
        raise UnavailableError(f"{member} serves {served.short} after a sync of {manifest.version.short}")
    return byte_count
