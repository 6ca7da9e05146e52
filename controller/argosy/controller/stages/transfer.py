"""One transfer of published weights to some servers: by which transports, through the four phases, in what time.

By stream the trainer serves a few servers, which pass the weights on (`argosy.controller.stages.sources`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from argosy.controller.context import RunContext
from argosy.controller.live import LeftError
from argosy.controller.stages.phases import Deadline, Staged, Update, brief, stage
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.sources import TRAINER, Holder, Sources, patience_of
from argosy.controller.stages.swaps import Swap
from argosy.roles.weights import PassesOn
from argosy.types.errors import ArgosyError, UnavailableError
from argosy.types.records import WeightsManifest
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
    deadline: Deadline | None = None,
) -> list[int | BaseException]:
    """Bring servers to what is published, each by its transport; for each the bytes that it took, or what went wrong.

    One transfer is opened for all servers of a transport; one that can't be opened fails for those servers only. What
    isn't done at the deadline (argosy.rpc.deadline_s from now, unless it is given) has failed.
    """
    deadline = deadline or Deadline(ctx.deadline_s)
    taken = _Taken()
    begun = time.perf_counter()
    try:
        groups = {name: [m for m in members if transports[m] == name] for name in {transports[m] for m in members}}
        parts = [
            _by_one(ctx, rollout, group, name, sync_id, manifest, attempt, taken, deadline)
            for name, group in groups.items()
        ]
        found: dict[str, int | BaseException] = {}
        for part in await asyncio.gather(*parts):
            found |= part
        return [found[member] for member in members]
    finally:
        await _close(ctx, sync_id, attempt)
        taken.report(ctx, time.perf_counter() - begun)


async def choose_transports(
    ctx: RunContext, members: Sequence[str], deadline: Deadline
) -> tuple[dict[str, str], dict[str, ArgosyError]]:
    """(member → transport, member → why it does not answer). "auto" is shared memory for servers on the trainer's host,
    the stream for all others; a trainer that can't be asked gets the stream: if it is lost, the sync will say so."""
    sync = ctx.config.argosy.weight_sync
    if sync.transport != "auto":
        return dict.fromkeys(members, sync.transport), {}
    if sync.delta == "xor":  # which only streams (and the disk) carry
        return dict.fromkeys(members, EVERYWHERE), {}
    try:
        async with deadline.bound("the trainer has not told where it runs"):
            trainer = await ctx.services.policy.status()
    except ArgosyError:
        return dict.fromkeys(members, EVERYWHERE), {}
    if not trainer.host_id or SAME_HOST not in trainer.transports:
        return dict.fromkeys(members, EVERYWHERE), {}
    asked = await asyncio.gather(*(_ask(ctx, member, trainer.host_id, deadline) for member in members))
    answers = dict(zip(members, asked, strict=True))
    silent = {member: answer for member, answer in answers.items() if isinstance(answer, ArgosyError)}
    return {member: answer for member, answer in answers.items() if isinstance(answer, str)}, silent


async def _ask(ctx: RunContext, member: str, host_id: str, deadline: Deadline) -> str | ArgosyError:
    """Its transport, where the trainer runs on `host_id`."""
    try:
        async with deadline.bound(f"{member} has not told where it runs"):
            can = (await ctx.services.rollouts[member].status()).capabilities
    except ArgosyError as error:
        return error
    shares = can.get("host_id") == host_id and SAME_HOST in can.get("transports", "").split(",")
    return SAME_HOST if shares else EVERYWHERE


async def _by_one(
    ctx: RunContext,
    rollout: RolloutStage,
    members: Sequence[str],
    transport: str,
    sync_id: str,
    manifest: WeightsManifest,
    attempt: int,
    taken: _Taken,
    deadline: Deadline,
) -> dict[str, int | BaseException]:
    policy = ctx.services.policy
    try:
        mutation = ctx.mutation("sync-open", sync_id, transport, attempt, len(members))
        async with deadline.bound("the trainer has not opened the transfer"):
            offers = await policy.open_transfer(transport, sync_id, len(members), mutation)
    except (ArgosyError, TimeoutError) as error:
        return dict.fromkeys(members, error)
    for name, value in (offers[0].options if offers else {}).items():
        if name.startswith(METRIC):  # what the sender tells of it: how small a delta is, how much has changed …
            ctx.measured[f"sync/{name.removeprefix(METRIC)}"] = float(value)
    passes_on = {member for member in members if _passes_on(ctx, member)}
    relays = fan_out(ctx) if transport == EVERYWHERE and passes_on else None
    patience_s = patience_of(deadline.seconds, ctx.measured.get("sync/transfer_s", 0.0))
    sources = Sources(policy.weight_source(), relays, patience_s)
    # Those in use first, who has failed before should not be what the others wait for; then those that help the others.
    ordered = sorted(members, key=lambda member: (member not in rollout.usable, member not in passes_on))
    updates = [
        Update(member, sync_id, manifest, offer, attempt) for member, offer in zip(ordered, offers, strict=False)
    ]
    work = [_sync_one(ctx, rollout, update, sources, deadline.copy(), taken) for update in updates]
    return dict(zip(ordered, await asyncio.gather(*work, return_exceptions=True), strict=True))


def _passes_on(ctx: RunContext, member: str) -> bool:
    try:
        return isinstance(ctx.services.rollouts[member], PassesOn)
    except LeftError:
        return False


def fan_out(ctx: RunContext) -> int | None:
    """Servers that take a version from the trainer, if others pass it on by stream; None: all do. Only the trainer has
    deltas, which are smaller by more than what passing whole weights on would save."""
    sync = ctx.config.argosy.weight_sync
    return None if sync.fan_out == 0 or sync.delta == "xor" else sync.fan_out


async def _close(ctx: RunContext, sync_id: str, attempt: int) -> None:
    """What was sent has arrived or not by now: a trainer that can't tidy up behind it changes nothing about that."""
    try:
        await ctx.services.policy.close_transfer(sync_id, ctx.mutation("sync-close", sync_id, attempt))
    except ArgosyError as error:
        ctx.count("sync/failed_closes")
        log.warning("the trainer did not close the transfer %s: %s", sync_id, brief(error))


async def _sync_one(
    ctx: RunContext, rollout: RolloutStage, update: Update, sources: Sources, deadline: Deadline, taken: _Taken
) -> int:
    member, manifest, names = update.member, update.manifest, update.names
    server = ctx.services.rollouts[member]
    async with Swap(ctx, rollout, member, names) as swap:
        async with deadline.bound(f"{member} has not received the weights"):
            staged = await stage(ctx, update, sources, swap.begin)
        if isinstance(server, PassesOn):
            sources.add(Holder(member, server.weight_source(), staged.holder.hops + 1))
        await swap.settle(deadline)
        began = time.perf_counter()
        async with deadline.bound(f"{member} has not swapped its weights"):
            served = await server.finish_weight_update(update.sync_id, ctx.mutation("sync-finish", *names))
            if served != manifest.version:
                raise UnavailableError(f"{member} serves {served.short} after a sync of {manifest.version.short}")
            await swap.swapped()
    taken.add(staged, time.perf_counter() - began)
    return staged.byte_count


@dataclass(slots=True)
class _Taken:
    """Seconds of each phase, of the slowest server."""

    check_s: float = 0.0
    transfer_s: float = 0.0
    pause_s: float = 0.0
    rates: list[float] = field(default_factory=list)
    trainer_byte_count: int = 0
    """Bytes that the trainer itself has sent."""
    hops: int = 0
    """Of the longest way of the bytes, from server to server."""

    def add(self, staged: Staged, pause_s: float) -> None:
        self.check_s = max(self.check_s, staged.check_s)
        self.transfer_s = max(self.transfer_s, staged.transfer_s)
        self.pause_s = max(self.pause_s, pause_s)
        self.hops = max(self.hops, staged.holder.hops + 1)
        if staged.holder.member == TRAINER:
            self.trainer_byte_count += staged.byte_count
        if staged.transfer_s > 0:
            self.rates.append(staged.byte_count / 1e9 / staged.transfer_s)

    def report(self, ctx: RunContext, total_s: float) -> None:
        """Into the metrics of the step. Sampling holds still in the last phase only: while weights come in, an engine
        with `updates_in_flight` goes on."""
        ctx.measured |= {
            "sync/check_s": self.check_s,
            "sync/transfer_s": self.transfer_s,
            "sync/pause_s": self.pause_s,
            "sync/total_s": total_s,
            "sync/trainer_mb": self.trainer_byte_count / 1e6,
            "sync/hops": self.hops,
        }
        if self.rates:
            ctx.measured["sync/slowest_gb_per_s"] = min(self.rates)
