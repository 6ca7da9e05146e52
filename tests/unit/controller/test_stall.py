"""What the controller sees of members, and what it says when a stage stands still."""

from __future__ import annotations

import asyncio
import logging

import pytest

from argosy.controller import stall
from argosy.controller.control import RunControl
from argosy.controller.stall import LEAST_S, TIMES, StallWatch
from argosy.controller.vitals import MAX_MEMBERS, MAX_MESSAGE, Vitals
from argosy.membership.memory import MemoryMembership
from argosy.types.errors import UnavailableError
from argosy.types.records import Member


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_progress_counts_only_while_a_member_has_samples(clock: Clock) -> None:
    vitals = Vitals(clock)
    clock.now += 50
    assert vitals.idle_s("rollout-0") == 0
    vitals.sent("rollout-0", 2)
    clock.now += 5
    vitals.sent("rollout-0")
    assert vitals.idle_s("rollout-0") == 5, "being sent more is no progress"
    vitals.moved("rollout-0")
    clock.now += 2
    assert vitals.idle_s("rollout-0") == 2
    vitals.ended("rollout-0", 3)
    clock.now += 9
    vitals.moved("rollout-0")
    assert vitals.idle_s("rollout-0") == 0
    assert vitals.of("rollout-0").sample_count == 0


def test_what_is_remembered_is_bounded() -> None:
    vitals = Vitals()
    vitals.failed("first", "x" * 10_000)
    assert len(vitals.of("first").error) == MAX_MESSAGE
    vitals.sent("first")
    for number in range(MAX_MEMBERS + 10):
        vitals.failed(f"rollout-{number}", UnavailableError("gone"))
    assert len(vitals.all) == MAX_MEMBERS
    assert vitals.of("first").sample_count == 1, "never one that has samples"


def test_a_stall_names_the_server_that_has_given_nothing_for_the_longest(clock: Clock) -> None:
    vitals = Vitals(clock)
    watch = StallWatch(vitals, clock)
    vitals.sent("rollout-0", 4)
    watch.enter("gen")
    vitals.sent("rollout-1", 7)
    vitals.failed("rollout-0", UnavailableError("rollout-0: connection lost"))
    clock.now += LEAST_S - 1
    vitals.moved("rollout-1")
    assert watch.stall() == ""
    clock.now += 2
    found = watch.stall()
    assert "has waited for gen since " in found
    assert "(31 s): rollout-0 has 4 samples and has given nothing for 31 s" in found
    assert "its last error was: rollout-0: connection lost" in found
    vitals.ended("rollout-0", 4)
    assert ": rollout-1 has 7 samples and has given nothing for 2 s" in watch.stall()
    watch.enter("update_actor")
    assert watch.stall() == ""


def test_a_stage_that_always_takes_long_is_no_stall(clock: Clock) -> None:
    watch = StallWatch(Vitals(clock), clock)
    watch.enter("update_actor")
    clock.now += 100
    watch.enter("gen")
    watch.enter("update_actor")
    clock.now += TIMES * 100 - 1
    assert watch.stall() == ""
    clock.now += 2
    assert watch.stall().endswith(": it is the trainer's")
    watch.enter("paused")
    clock.now += 10_000
    assert watch.stall() == "", "a person wanted that"


async def test_a_stall_is_told_once_and_so_is_its_end(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall, "CHECK_S", 0.001)
    caplog.set_level(logging.WARNING)
    watch, told = StallWatch(Vitals(clock), clock), asyncio.Event()
    watching = asyncio.create_task(watch.run(told.set))
    watch.enter("reward")
    clock.now += LEAST_S
    await asyncio.wait_for(told.wait(), 10)
    await asyncio.sleep(0.02)
    watch.enter("gen")
    assert [record.getMessage().split(" since")[0] for record in caplog.records] == [
        "stalled: the loop has waited for reward", "reward has ended after 30 s",
    ]  # fmt: skip
    watching.cancel()


class Away(MemoryMembership):
    """A membership that can't be asked at times."""

    is_away = stands_still = False

    async def members(self, role: str | None = None) -> tuple[Member, ...]:
        if self.stands_still:
            await asyncio.Event().wait()
        if self.is_away:
            raise UnavailableError("etcd at h:9 does not answer")
        return await super().members(role)


async def test_f6_while_membership_is_away_a_controller_lists_what_it_last_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argosy.controller.control._ASK_S", 0.05)
    control = RunControl("run", 3)
    control.membership = membership = Away()
    await membership.register(Member("rollout-0", "rollout", "h:1", "x"))
    await membership.register(Member("controller-0", "controller", "h:2", "y"))
    membership.is_away = True
    with pytest.raises(UnavailableError, match="does not answer"):  # nothing is known yet
        await control.list_members()
    following = asyncio.create_task(control.follow_members(membership))
    await asyncio.sleep(0)
    ours, rollout = await control.list_members()
    assert (ours.member_id, rollout.member_id, rollout.error) == ("controller-0", "rollout-0", "")
    assert ours.error == "etcd can't be asked: members as they last were"
    assert await control.list_members("rollout") == [rollout]
    membership.is_away, membership.stands_still = False, True
    assert [member.error for member in await control.list_members()] == [ours.error, ""]
    membership.stands_still = False
    assert [member.error for member in await control.list_members()] == ["", ""]
    following.cancel()


async def test_a_controller_lists_what_it_has_seen_of_members() -> None:
    control = RunControl("run", 3)
    control.membership = membership = MemoryMembership()
    await membership.register(Member("rollout-0", "rollout", "h:1", "x"))
    control.vitals.sent("rollout-0", 5)
    control.vitals.failed("rollout-0", UnavailableError("lost"))
    [seen] = await control.list_members()
    assert (seen.sample_count, seen.error) == (5, "lost")
    control.at_stage("gen")
    run = await control.get_run()
    assert (run.stage, run.stall) == ("gen", "")
    assert run.stage_since > 1e9
    await membership.close()
