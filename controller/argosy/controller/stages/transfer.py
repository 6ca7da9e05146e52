"""One transfer of published weights to some servers: by which transports, through the four phases, in what time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from argosy.controller.context import RunContext
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.swaps import Swap
from argosy.types.errors import ArgosyError, UnavailableError
from argosy.types.records import TransferOffer, WeightsManifest
from argosy.weightsync.transports.base import METRIC

log = logging.getLogger(__name__)

EVERYWHERE = "stream"
"""What works between any two hosts that reach each other."""
SAME_HOST = "shared_memory"


async def transfer(
    ctx: RunContext,
    rollout: RolloutStage,
    members: Sequence[str],
    transports: Mapping[str, str],
    sync_id: str,
    manifest: WeightsManifest,
    attempt: int,
) -> list[int | BaseException]:
    """Bring servers to what is published, each by its transport; for each the bytes that it took, or what went wrong.

    One transfer is opened for all servers of a transport; one that can't be opened fails for those servers only.
    """
    taken = _Taken()
    begun = time.perf_counter()
    try:
        groups = {name: [m for m in members if transports[m] == name] for name in {transports[m] for m in members}}
        parts = [
            _by_one(ctx, rollout, group, name, sync_id, manifest, attempt, taken) for name, group in groups.items()
        ]
        found: dict[str, int | BaseException] = {}
        for part in await asyncio.gather(*parts):
            found |= part
        return [found[member] for member in members]
    finally:
        await _close(ctx, sync_id, attempt)
        taken.report(ctx, time.perf_counter() - begun)


async def choose_transports(ctx: RunContext, members: Sequence[str]) -> dict[str, str]:
    """Member → transport. "auto" is shared memory for servers on the trainer's host, the stream for all others.

    A server or trainer that can't be asked gets the stream: if it is lost, its sync will say so.
    """
    sync = ctx.config.argosy.weight_sync
    if sync.transport != "auto":
        return dict.fromkeys(members, sync.transport)
    if sync.delta == "xor":  # which only streams (and the disk) carry
        return dict.fromkeys(members, EVERYWHERE)
    try:
        async with asyncio.timeout(ctx.deadline_s):
            trainer = await ctx.services.policy.status()
    except (ArgosyError, TimeoutError):
        return dict.fromkeys(members, EVERYWHERE)
    if not trainer.host_id or SAME_HOST not in trainer.transports:
        return dict.fromkeys(members, EVERYWHERE)
    near = await asyncio.gather(*(_shares_memory(ctx, member, trainer.host_id) for member in members))
    return {member: SAME_HOST if shares else EVERYWHERE for member, shares in zip(members, near, strict=True)}


async def _shares_memory(ctx: RunContext, member: str, host_id: str) -> bool:
    try:
        async with asyncio.timeout(ctx.deadline_s):
            can = (await ctx.services.rollouts[member].status()).capabilities
    except (ArgosyError, TimeoutError):
        return False
    return can.get("host_id") == host_id and SAME_HOST in can.get("transports", "").split(",")


async def _by_one(
    ctx: RunContext,
    rollout: RolloutStage,
    members: Sequence[str],
    transport: str,
    sync_id: str,
    manifest: WeightsManifest,
    attempt: int,
    taken: _Taken,
) -> dict[str, int | BaseException]:
    policy = ctx.services.policy
    try:
        mutation = ctx.mutation("sync-open", sync_id, transport, attempt)
        offers = await policy.open_transfer(transport, sync_id, len(members), mutation)
    except (ArgosyError, TimeoutError) as error:
        return dict.fromkeys(members, error)
    for name, value in (offers[0].options if offers else {}).items():
        if name.startswith(METRIC):  # what the sender tells of it: how small a delta is, how much has changed …
            ctx.measured[f"sync/{name.removeprefix(METRIC)}"] = float(value)
    pairs = zip(members, offers, strict=False)
    work = [_sync_one(ctx, rollout, member, sync_id, manifest, offer, attempt, taken) for member, offer in pairs]
    return dict(zip(members, await asyncio.gather(*work, return_exceptions=True), strict=True))


async def _close(ctx: RunContext, sync_id: str, attempt: int) -> None:
    """What was sent has arrived or not by now: a trainer that can't tidy up behind it changes nothing about that."""
    try:
        await ctx.services.policy.close_transfer(sync_id, ctx.mutation("sync-close", sync_id, attempt))
    except ArgosyError as error:
        ctx.count("sync/failed_closes")
        log.warning("the trainer did not close the transfer %s: %s", sync_id, error)


async def _sync_one(
    ctx: RunContext,
    rollout: RolloutStage,
    member: str,
    sync_id: str,
    manifest: WeightsManifest,
    offer: TransferOffer,
    attempt: int,
    taken: _Taken,
) -> int:
    server, names = ctx.services.rollouts[member], (sync_id, member, offer.transport, attempt)
    clock = [time.perf_counter()]
    async with Swap(ctx, rollout, member, names) as swap:
        async with asyncio.timeout(ctx.deadline_s):
            await server.init_weight_transfer(offer.transport, ctx.mutation("sync-init", *names))
            await server.start_weight_update(sync_id, manifest, ctx.mutation("sync-start", *names))
            clock.append(time.perf_counter())
            source = ctx.services.policy.weight_source()
            byte_count = await server.update_weights(sync_id, source, ctx.mutation("sync-update", *names), offer)
            clock.append(time.perf_counter())
        await swap.settle()
        async with asyncio.timeout(ctx.deadline_s):
            served = await server.finish_weight_update(sync_id, ctx.mutation("sync-finish", *names))
            if served != manifest.version:
                raise UnavailableError(f"{member} serves {served.short} after a sync of {manifest.version.short}")
            await swap.swapped()
        clock.append(time.perf_counter())
    taken.add(byte_count, *(end - begin for begin, end in pairwise(clock)))
    return byte_count


@dataclass(slots=True)
class _Taken:
    """Seconds of each phase, of the slowest server."""

    check_s: float = 0.0
    transfer_s: float = 0.0
    pause_s: float = 0.0
    rates: list[float] = field(default_factory=list)

    def add(self, byte_count: int, check_s: float, transfer_s: float, pause_s: float) -> None:
        self.check_s = max(self.check_s, check_s)
        self.transfer_s = max(self.transfer_s, transfer_s)
        self.pause_s = max(self.pause_s, pause_s)
        if transfer_s > 0:
            self.rates.append(byte_count / 1e9 / transfer_s)

    def report(self, ctx: RunContext, total_s: float) -> None:
        """Into the metrics of the step. Sampling holds still in the last phase only: while weights come in, an engine
        with `updates_in_flight` goes on."""
        ctx.measured |= {
            "sync/check_s": self.check_s,
            "sync/transfer_s": self.transfer_s,
            "sync/pause_s": self.pause_s,
            "sync/total_s": total_s,
        }
        if self.rates:
            ctx.measured["sync/slowest_gb_per_s"] = min(self.rates)
