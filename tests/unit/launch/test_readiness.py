"""Who is waited for at a start, and who isn't."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from argosy.controller.launch.readiness import wait_ready
from argosy.membership.memory import MemoryMembership
from argosy.rpc.gate import Gate
from argosy.rpc.server import RpcServer
from argosy.types.errors import DeadlineError
from argosy.types.records import Member, MemberState

ANY = {("rollout", "default"): 1}


def rollout(name: str, address: str, state: MemberState = MemberState.STALE) -> Member:
    return Member(name, "rollout", address, f"life-of-{name}", state=state)


async def test_a_server_that_is_gone_and_has_its_lease_still_holds_nobody_up() -> None:
    membership = MemoryMembership()
    await membership.register(rollout("rollout-0", "127.0.0.1:1"))  # nobody is there
    await membership.register(rollout("rollout-1", "127.0.0.1:1", MemberState.JOINING))
    waiting = asyncio.create_task(wait_ready(membership, {}, time.monotonic() + 30, Path("logs"), pools=ANY))
    await asyncio.sleep(0.1)
    server = RpcServer.listen("127.0.0.1", gate=Gate("rollout-2"))
    await server.start()
    await membership.register(rollout("rollout-2", server.address))
    await asyncio.sleep(0.1)
    assert not waiting.done(), "its health says NOT_SERVING"
    await server.serve([])
    assert [member.member_id for member in await asyncio.wait_for(waiting, 30)] == ["rollout-2"]
    await server.stop(0)
    await membership.close()


async def test_a_wait_ends_with_who_is_missing_or_with_membership() -> None:
    membership = MemoryMembership()
    with pytest.raises(DeadlineError, match="`argosy serve rollout --pool default`"):
        await wait_ready(membership, {}, time.monotonic() + 0.1, Path("logs"), pools=ANY)
    with pytest.raises(DeadlineError, match="trainer-0 has not registered; see"):
        await wait_ready(membership, {"trainer-0": "life"}, time.monotonic() + 0.1, Path("logs"))
    waiting = asyncio.create_task(wait_ready(membership, {}, time.monotonic() + 30, Path("logs"), pools=ANY))
    await asyncio.sleep(0.1)
    await membership.close()
    with pytest.raises(DeadlineError, match="membership was closed"):
        await asyncio.wait_for(waiting, 30)
