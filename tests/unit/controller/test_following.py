"""Whoever watches a run finds the controller that leads it, and the next one when that is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from argosy.config import Config
from argosy.controller.control import RunControl
from argosy.controller.serving import ADDRESS_FILE, serve_control
from argosy.membership.memory import MemoryMembership
from argosy.rpc.clients.leading import find_leader, follow_run
from argosy.telemetry.traces import setup_from_settings
from argosy.types.errors import UnavailableError
from argosy.types.records import Member, MemberState

HANG_S = 30


class Leaders:
    """Controllers of one run, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.membership = MemoryMembership()

    async def lead(self, stack: AsyncExitStack, term: int, run_id: str = "run") -> RunControl:
        control = RunControl(run_id, 10)
        control.view.term, control.view.state = term, "running"
        tracing = setup_from_settings("c", run_id=run_id, run_dir=self.folder, enabled=False, otlp_endpoint=None)
        serving = serve_control(control, self.membership, self.folder, Config(), tracing, f"controller-{term}")
        await stack.enter_async_context(serving)
        return control


@pytest.fixture
async def leaders(tmp_path: Path) -> AsyncIterator[Leaders]:
    made = Leaders(tmp_path)
    yield made
    await made.membership.close()


def at_step(control: RunControl, step: int) -> None:
    control.view.step = step
    control.notify()


async def test_the_leader_of_the_highest_term_is_found(leaders: Leaders) -> None:
    assert await find_leader(leaders.membership, "run") is None
    standby = Member("controller-9", "controller", "127.0.0.1:1", "x", capabilities={"run_id": "run", "term": "9"})
    await leaders.membership.register(standby)  # it isn't READY
    async with AsyncExitStack() as stack:
        for term in (2, 1):
            await leaders.lead(stack, term)
        await leaders.lead(stack, 5, "another-run")
        found = {run_id: await find_leader(leaders.membership, run_id) for run_id in ("run", "another-run", "", "no")}
    assert {run_id: member and member.member_id for run_id, member in found.items()} == {
        "run": "controller-2",
        "another-run": "controller-5",
        "": "controller-5",
        "no": None,
    }


async def test_an_old_leader_leaves_the_address_of_the_new_one_alone(leaders: Leaders, tmp_path: Path) -> None:
    async with AsyncExitStack() as new:
        async with AsyncExitStack() as old:
            await leaders.lead(old, 1)
            await leaders.lead(new, 2)
        leader = await find_leader(leaders.membership, "run")
        assert leader is not None
        assert json.loads((tmp_path / ADDRESS_FILE).read_text())["address"] == leader.address
    assert not (tmp_path / ADDRESS_FILE).exists()


async def test_a_watch_goes_on_with_the_next_leader_and_ends_with_the_run(leaders: Leaders) -> None:
    seen: list[tuple[int, int, str]] = []

    async def watch() -> None:
        async for status in follow_run(leaders.membership, "run", patience_s=HANG_S):
            seen.append((status.term, status.step, status.state))

    watching = asyncio.create_task(watch())

    async def until(*wanted: tuple[int, int, str]) -> None:
        async with asyncio.timeout(HANG_S):
            while not set(wanted) <= set(seen):
                assert not watching.done()
                await asyncio.sleep(0.01)

    async with AsyncExitStack() as stack:
        at_step(await leaders.lead(stack, 1), 3)
        await until((1, 3, "running"))
    async with AsyncExitStack() as stack:
        second = await leaders.lead(stack, 2)
        await until((2, 0, "running"))
        second.ended("failed", "its disk is full")
        await until((2, 0, "failed"))
        third = await leaders.lead(stack, 3)  # the second is still there, and doesn't count any more
        await until((3, 0, "running"))
        third.ended("finished")
        await asyncio.wait_for(watching, HANG_S)
    assert seen[-1] == (3, 0, "finished")
    assert seen.count((2, 0, "failed")) == 1


async def test_a_run_that_nobody_leads_any_more_is_an_error(leaders: Leaders) -> None:
    await leaders.membership.register(
        Member("gone", "controller", "127.0.0.1:1", "x", state=MemberState.READY, capabilities={"run_id": "run"})
    )
    with pytest.raises(UnavailableError, match="gone leads, and doesn't answer"):
        async for _ in follow_run(leaders.membership, "run", patience_s=0.3):
            pass
    with pytest.raises(UnavailableError, match="nobody leads other here"):
        async for _ in follow_run(leaders.membership, "other", patience_s=0.3):
            pass
