"""Weights out: the trainer freezes a version, and every rollout server takes it, all or nothing per server."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from argosy.controller.context import RunContext
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.transfer import EVERYWHERE, SAME_HOST, choose_transports, transfer
from argosy.controller.stages.weights_form import choose_form, publish, with_bases
from argosy.types.errors import (
    ArgosyError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from argosy.types.ids import PolicyVersion
from argosy.types.records import WeightsManifest

log = logging.getLogger(__name__)


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
    manifest = await with_bases(ctx, members, sync_id, manifest, step, partial(_send_to, ctx, rollout))
    results = await _send_to(ctx, rollout, members, sync_id, manifest)
    failures: dict[str, BaseException] = {}
    for member, result in zip(members, results, strict=True):
        if isinstance(result, (ArgosyError, TimeoutError)):
            rollout.give_up(member)
            failures[member] = result
            ctx.count("sync/failed_members")
            log.warning("weight sync %s to %s failed: %s", sync_id, member, result)
        elif not isinstance(result, int):
            raise result
    if not members:
        raise UnavailableError(f"no rollout server is left that could take the weights of step {step}")
    if len(failures) == len(members):
        member, failure = next(iter(failures.items()))
        raise UnavailableError(f"no rollout server took the weights of step {step}; {member}: {failure}") from failure
    ctx.measured["sync/transferred_mb"] = sum(result for result in results if isinstance(result, int)) / 1e6
    ctx.measured["sync/manifest_mb"] = sum(t.size_bytes for t in manifest.tensors if not t.tied_to) / 1e6
    await rollout.synced([member for member in members if member not in failures], manifest.version)
    return manifest.version


async def _send_to(
    ctx: RunContext, rollout: RolloutStage, members: Sequence[str], sync_id: str, manifest: WeightsManifest
) -> list[int | BaseException]:
    """Bring servers to what is published; for each the bytes that it took, or what went wrong with it.

    Two failures are tried again once. Damage: a sender on disk then mends what it wrote, and no server takes a delta
    twice. Memory that could not be shared after all, where that was our own choice: by the stream.
    """
    ways = await choose_transports(ctx, members)
    results = dict(zip(members, await transfer(ctx, rollout, members, ways, sync_id, manifest, 1), strict=True))
    again = [member for member, result in results.items() if _worth_another_try(ctx, ways[member], result)]
    if again:
        first = results[again[0]]
        log.warning("weight sync %s failed for %s, once more: %s", sync_id, again, first)
        ctx.count("sync/damaged", sum(isinstance(results[member], CorruptDataError) for member in again))
        ways |= {m: EVERYWHERE for m in again if ways[m] == SAME_HOST}
        results |= zip(again, await transfer(ctx, rollout, again, ways, sync_id, manifest, 2), strict=True)
    return list(results.values())


def _worth_another_try(ctx: RunContext, transport: str, result: int | BaseException) -> bool:
    if ctx.config.argosy.weight_sync.transport == "auto" and transport == SAME_HOST:
        return isinstance(result, (CorruptDataError, InvalidInputError, NotFoundError))
    return isinstance(result, CorruptDataError)
