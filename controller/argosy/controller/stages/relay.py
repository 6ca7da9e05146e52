"""One server is brought to the version that the fleet holds: from a server that serves it, else from the trainer.

    newcomer or straggler ── phases 1 to 3, from a peer ──► phase 4 ──► serves the version

A peer is in use, says that it is ready, and serves exactly that version: a newcomer is none of that (case E11), and no
server is in a swap meanwhile, since a sync of all and this never meet (`argosy.controller.stages.turns`). A peer that
dies half way costs another try, from another one.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from argosy.controller.context import RunContext
from argosy.controller.stages.phases import Deadline, Staged, Update, brief, stage
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.sources import Holder, Sources
from argosy.controller.stages.transfer import EVERYWHERE
from argosy.controller.stages.weights_form import publish
from argosy.roles.rollout import Rollout
from argosy.roles.weights import PassesOn, WeightSource
from argosy.types.errors import ArgosyError, FencedError, NotFoundError, UnavailableError
from argosy.types.ids import PolicyVersion
from argosy.types.records import Mutation, TransferOffer, WeightsForm, WeightsManifest
from argosy.weightsync.adapter import MISSING_BASE

log = logging.getLogger(__name__)

MAX_PEERS = 2
"""Peers that one server may try before the trainer."""
END_SWAP_S = 5.0
"""For a swap that has begun to end, when a sync of all takes over."""


async def catch_up(ctx: RunContext, rollout: RolloutStage, member: str) -> None:
    """Bring a server to `rollout.version`, whichever that is at the end; it is for the caller to take it into use.

    A sync of all that begins meanwhile goes first, and may bring the server's weights itself. Raises UnavailableError
    when nobody who answers has the version, and what the server fails with. Nothing happens before the first sync, and
    to a server that serves the version already.
    """
    while not await rollout.turns.single(member, partial(_catch_up, ctx, rollout, member)):
        log.info("a sync of all servers has ended the catching up of %s", member)


async def _catch_up(ctx: RunContext, rollout: RolloutStage, member: str) -> None:
    version = rollout.version
    if version is None:
        return
    server = ctx.services.rollouts[member]
    deadline = Deadline(ctx.deadline_s)
    async with deadline.bound(f"{member} is not caught up"):
        status = await server.status()
        if status.version != version:
            await _bring(ctx, rollout, member, version)
        if status.state == "paused":  # its samples were ended for a swap that has failed
            await server.resume(_mutation(ctx, member, version, "resume"))


async def _bring(ctx: RunContext, rollout: RolloutStage, member: str, version: PolicyVersion) -> None:
    lenders: list[str] = []
    try:
        peers = await _peers(ctx, rollout, member, version, lenders)
        manifest = await _manifest(ctx, peers, version)
        staged = await _stage(ctx, member, manifest, peers)
        await _finish(ctx, ctx.services.rollouts[member], member, manifest)
    finally:
        rollout.turns.lending.subtract(lenders)
    ctx.count("sync/caught_up")
    where = staged.holder.member or "the trainer"
    log.info("%s has taken weights %s from %s (%d bytes)", member, version.short, where, staged.byte_count)


async def _peers(
    ctx: RunContext, rollout: RolloutStage, member: str, version: PolicyVersion, lenders: list[str]
) -> list[Holder]:
    """Servers that serve the version now, the one that passes it on to the fewest first: that is counted, and noted in
    `lenders`, before it is asked, so that several newcomers don't all go to the same."""
    lending = rollout.turns.lending
    left = set(rollout.in_use()) - rollout.turns.left_out - {member}
    found: list[Holder] = []
    while left and len(found) < MAX_PEERS:
        peer = min(left, key=lambda peer: (lending[peer], peer))
        left.discard(peer)
        if not found:
            lending[peer] += 1
            lenders.append(peer)
        server = await _serving(ctx, peer, version)
        if server is not None:
            found.append(Holder(peer, server.weight_source(), 1))
    return found


async def _serving(ctx: RunContext, peer: str, version: PolicyVersion) -> PassesOn | None:
    """The peer, if it says that it is ready and serves the version."""
    try:
        server = ctx.services.rollouts[peer]
        status = await server.status()
    except ArgosyError as error:
        log.info("%s is no source of weights: %s", peer, brief(error))
        return None
    fits = status.state == "ready" and status.version == version
    return server if fits and isinstance(server, PassesOn) else None


async def _manifest(ctx: RunContext, peers: list[Holder], version: PolicyVersion) -> WeightsManifest:
    """From the first who has it. A peer that can't tell it is no source (it is taken off `peers`)."""
    reason = "none of them was asked"
    sources: list[tuple[Holder | None, WeightSource]] = [(peer, peer.source) for peer in peers]
    for peer, source in [*sources, (None, ctx.services.policy.weight_source())]:
        try:
            manifest = await source.get_manifest()
            if manifest.version == version:
                return manifest
            reason = f"{'the trainer' if peer is None else peer.member} has {manifest.version.short}"
        except FencedError:
            raise
        except ArgosyError as error:
            reason = brief(error)
        if peer is not None:
            peers.remove(peer)
    raise UnavailableError(f"nobody gives away the weights {version.short} that the servers hold: {reason}")


async def _stage(ctx: RunContext, member: str, manifest: WeightsManifest, peers: list[Holder]) -> Staged:
    sources = Sources(ctx.services.policy.weight_source(), 0)
    for peer in peers:
        sources.add(peer)
    update = _update(ctx, member, manifest)
    try:
        return await stage(ctx, update, sources, lambda: None)
    except NotFoundError as error:
        if error.metadata.get("missing") != MISSING_BASE:
            raise
    await _bring_base(ctx, member, manifest)
    return await stage(ctx, update, sources, lambda: None)


async def _bring_base(ctx: RunContext, member: str, manifest: WeightsManifest) -> None:
    """What is under an adapter, which only the trainer has as such. StepMismatchError if that has trained on since: the
    next sync of all brings it."""
    step = manifest.version.step
    base = await publish(ctx, step, WeightsForm.BASE, "catch-up", member)
    try:
        update = _update(ctx, member, base)
        await stage(ctx, update, Sources(ctx.services.policy.weight_source(), None), lambda: None)
        await _finish(ctx, ctx.services.rollouts[member], member, base)
    finally:
        await publish(ctx, step, WeightsForm.ADAPTER, "after-catch-up", member)


async def _finish(ctx: RunContext, server: Rollout, member: str, manifest: WeightsManifest) -> None:
    """Swap the weights in. A swap that has begun ends, also if a sync of all takes over: it would refuse that."""
    mutation = _mutation(ctx, member, manifest.version, "finish")
    finishing = asyncio.ensure_future(server.finish_weight_update(_sync_id(member, manifest.version), mutation))
    try:
        served = await asyncio.shield(finishing)
    except asyncio.CancelledError:
        await asyncio.wait({finishing}, timeout=END_SWAP_S)
        finishing.cancel()
        raise
    if served != manifest.version:
        raise UnavailableError(f"{member} serves {served.short}, not {manifest.version.short}")


def _update(ctx: RunContext, member: str, manifest: WeightsManifest) -> Update:
    options = {"streams": str(ctx.config.argosy.weight_sync.streams)}
    sync_id = _sync_id(member, manifest.version)
    offer = TransferOffer(EVERYWHERE, sync_id, manifest.version, "", options=options)
    ctx.count("sync/catch_ups")
    return Update(member, sync_id, manifest, offer, int(ctx.counters["sync/catch_ups"]))


def _sync_id(member: str, version: PolicyVersion) -> str:
    return f"{version.lineage}-{version.step}-{member}"


def _mutation(ctx: RunContext, member: str, version: PolicyVersion, what: str) -> Mutation:
    return ctx.mutation(f"catch-up-{what}", member, version.short, int(ctx.counters.get("sync/catch_ups", 0)))
