"""Rosters that follow membership while a block runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from argosy.config import Config
from argosy.controller.roster import Client, Roster, keeps_servers
from argosy.membership.interface import Membership
from argosy.types.records import NO_LEADER, Leader, Member

if TYPE_CHECKING:
    from argosy.rpc.clients.rollout import RolloutClient
    from argosy.rpc.options import RpcOptions
    from argosy.rpc.retry import RetryPolicy


@asynccontextmanager
async def open_roster(
    role: str,
    connect: Callable[[Member], Client],
    membership: Membership,
    members: Sequence[Member] = (),
    *,
    fixed: bool = False,
    accepts: Callable[[Member], bool] = lambda member: True,
) -> AsyncIterator[Roster[Client]]:
    """A roster that follows membership while the block runs, beginning with `members`."""
    roster = Roster(role, connect, members, fixed=fixed, accepts=accepts)
    following = asyncio.create_task(roster.follow(membership), name=f"follow {role} servers")
    following.add_done_callback(roster.ended)
    try:
        yield roster
    finally:
        following.cancel()
        await asyncio.wait({following})
        await roster.close()


@asynccontextmanager
async def open_rollouts(
    config: Config,
    membership: Membership,
    members: Sequence[Member],
    options: RpcOptions,
    policy: RetryPolicy,
    leader: Leader = NO_LEADER,
) -> AsyncIterator[Roster[RolloutClient]]:
    """The rollout servers of a run: `members`, and those who come; as clients that act for `leader`."""
    from argosy.rpc.clients.rollout import RolloutClient

    def connect(member: Member) -> RolloutClient:
        return RolloutClient(member.address, member_id=member.member_id, options=options, policy=policy, leader=leader)

    def accepts(member: Member) -> bool:
        return member.pool in config.pools

    opened = open_roster("rollout", connect, membership, members, fixed=keeps_servers(config), accepts=accepts)
    async with opened as roster:
        yield roster
