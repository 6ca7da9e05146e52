"""Weights out: the trainer freezes a version, and every rollout server takes it, all or nothing per server."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from argosy.controller.context import RunContext
from argosy.controller.stages.fleet import AWAY
from argosy.controller.stages.phases import Deadline
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.stragglers import bring_back, leave_out
from argosy.controller.stages.transfer import EVERYWHERE, SAME_HOST, choose_transports, transfer
from argosy.controller.stages.weights_form import choose_form, publish, with_bases
from argosy.types.errors import (
    ArgosyError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from argosy.types.ids import PolicyVersion
from argosy.types.records import WeightsManifest

log = logging.getLogger(__name__)


async def publish_and_sync(ctx: RunContext, rollout: RolloutStage, step: int) -> PolicyVersion:
    """Publish the trainer's weights as (lineage, step) and bring every rollout server to that version.

    Who takes part, and under which name, is settled before the first byte. A server that fails costs the sync's
    deadline at most, keeps its old version, and is left out from then on: when it answers again it is caught up (see
    `argosy.controller.stages.stragglers`). Raises UnavailableError when no server took the version and none may join,
    and FencedError when one has seen a newer leader.
    """
    async with rollout.turns.whole():
        manifest = await publish(ctx, step, await choose_form(ctx, _members(rollout)))
        await rollout.wake(step)
        sync_id = f"{ctx.lineage}-{step}"
        members, deadline = _members(rollout), Deadline(ctx.deadline_s)
        send = partial(_send_to, ctx, rollout, deadline)
        manifest = await with_bases(ctx, members, sync_id, manifest, step, send, deadline)
        results = await send(members, sync_id, manifest)
        failures = _failures(ctx, dict(zip(members, results, strict=True)))
        if len(failures) == len(members):
            _nobody_took_it(ctx, step, failures)
        for member, failure in failures.items():
            leave_out(ctx, rollout, member, failure)
        for member in set(rollout.in_use()) - set(members):  # came into use meanwhile, with the version before
            bring_back(ctx, rollout, member)
        ctx.measured["sync/transferred_mb"] = sum(result for result in results if isinstance(result, int)) / 1e6
        ctx.measured["sync/manifest_mb"] = sum(t.size_bytes for t in manifest.tensors if not t.tied_to) / 1e6
        await rollout.synced([member for member in members if member not in failures], manifest.version)
    return manifest.version


def _members(rollout: RolloutStage) -> list[str]:
    """Who takes part in a sync: all but those that do not answer, unless that is everyone. Who is in use does."""
    members, left_out = rollout.members(), rollout.turns.left_out
    return [member for member in members if member not in left_out or rollout.is_usable(member)] or members


def _nobody_took_it(ctx: RunContext, step: int, failures: Mapping[str, Exception]) -> None:
    """Raises UnavailableError, unless others may join and those that failed are only away: then these are waited for
    when there is work."""
    if ctx.services.takes_joiners and all(isinstance(failure, AWAY) for failure in failures.values()):
        log.warning("no rollout server has the weights of step %d", step)
        return
    for member, failure in failures.items():
        text = f"no rollout server took the weights of step {step}; {member}: {failure}"
        raise UnavailableError(text) from failure
    raise UnavailableError(f"no rollout server is left that could take the weights of step {step}")


def _failures(ctx: RunContext, results: dict[str, int | BaseException]) -> dict[str, Exception]:
    """What went wrong, by member. Raises what isn't one server's failure."""
    failures: dict[str, Exception] = {}
    for member, result in results.items():
        if isinstance(result, FencedError) or not isinstance(result, (int, ArgosyError, TimeoutError)):
            raise result
        if not isinstance(result, int):
            failures[member] = result
            ctx.count("sync/failed_members")
            ctx.vitals.failed(member, result)
    return failures


async def _send_to(
    ctx: RunContext,
    rollout: RolloutStage,
    deadline: Deadline,
    members: Sequence[str],
    sync_id: str,
    manifest: WeightsManifest,
) -> list[int | BaseException]:
    """Bring servers to what is published; for each the bytes that it took, or what went wrong with it.

    Two failures are tried again once. Damage: a sender on disk then mends what it wrote, and no server takes a delta
    twice. Memory that could not be shared after all, where that was our own choice: by the stream.
    """
    ways, silent = await choose_transports(ctx, members, deadline)
    results: dict[str, int | BaseException] = dict(silent)
    for member in silent:
        rollout.give_up(member)
    there = [member for member in members if member in ways]
    results |= zip(there, await transfer(ctx, rollout, there, ways, sync_id, manifest, 1, deadline), strict=True)
    again = [member for member in there if _worth_another_try(ctx, ways[member], results[member])]
    if again:
        first = results[again[0]]
        log.warning("weight sync %s failed for %s, once more: %s", sync_id, again, first)
        ctx.count("sync/damaged", sum(isinstance(results[member], CorruptDataError) for member in again))
        ways |= {m: EVERYWHERE for m in again if ways[m] == SAME_HOST}
        results |= zip(again, await transfer(ctx, rollout, again, ways, sync_id, manifest, 2, deadline), strict=True)
    return [results[member] for member in members]


def _worth_another_try(ctx: RunContext, transport: str, result: int | BaseException) -> bool:
    if ctx.config.argosy.weight_sync.transport == "auto" and transport == SAME_HOST:
        return isinstance(result, (CorruptDataError, InvalidInputError, NotFoundError))
    return isinstance(result, CorruptDataError)
