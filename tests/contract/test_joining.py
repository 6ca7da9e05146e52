"""Rollout servers come and go under samples that are asked for one by one: real engines, real weights, one process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from argosy.controller.context import RunContext, Services
from argosy.controller.roster import Roster
from argosy.controller.stages.newcomers import Newcomers
from argosy.controller.stages.relay import catch_up
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.sync import publish_and_sync
from argosy.trainer.core import Trainer
from argosy.types.errors import UnavailableError
from argosy.types.ids import SampleId
from argosy.types.records import Completion, FinishReason, GenerateRequest, Member, MemberState, SamplingParams
from contract.forms import MakeRollout, mutation
from contract.test_sync_stage import context, make_trainer, train


@pytest.fixture
def trainers() -> Iterator[list[Trainer]]:
    made: list[Trainer] = []
    yield made
    for trainer in made:
        trainer.close()


class Fleet:
    """Cores of this process as members that a roster follows."""

    def __init__(self, ctx: RunContext, cores: dict[str, Any]) -> None:
        self.cores = cores
        self.lives = dict.fromkeys(cores, 0)
        self.roster: Roster[Any] = Roster("rollout", lambda one: Connection(self.cores[one.member_id]), self.now())
        old = ctx.services
        ctx.services = Services(
            self.roster.clients, old.reward, old.policy, None, lost=self.roster.lost, roster=self.roster
        )
        self.stage = RolloutStage(ctx)
        self.newcomers = Newcomers(ctx, self.stage, catch_up)

    def now(self, **states: MemberState) -> list[Member]:
        return [
            Member(
                name, "rollout", f"127.0.0.1:{self.lives[name]}", f"{name}-{self.lives[name]}",
                state=states.get(name.replace("-", "_"), MemberState.READY),
            )
            for name in self.cores
        ]  # fmt: skip

    def join(self, name: str, core: Any) -> None:
        """It registers, stale as every newcomer."""
        self.cores[name] = core
        self.lives[name] = self.lives.get(name, 0) + 1
        self.roster.update(self.now(**{name.replace("-", "_"): MemberState.STALE}))

    def leave(self, name: str) -> None:
        del self.cores[name]
        self.roster.update(self.now())


class Connection:
    """What a client does when it is closed: its calls end with UnavailableError."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.closed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    async def generate(self, requests: Any, **options: Any) -> AsyncIterator[Completion]:
        answers = self.core.generate(requests, **options)
        try:
            while True:
                answer = asyncio.ensure_future(anext(answers))
                closed = asyncio.ensure_future(self.closed.wait())
                await asyncio.wait({answer, closed}, return_when=asyncio.FIRST_COMPLETED)
                closed.cancel()
                if not answer.done():
                    answer.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await answer
                    raise UnavailableError("the connection was closed")
                try:
                    yield answer.result()
                except StopAsyncIteration:
                    return
        finally:
            await answers.aclose()

    async def close(self) -> None:
        self.closed.set()


def asked(position: int, tokens: int = 12) -> GenerateRequest:
    params = SamplingParams(tokens, temperature=1.0, seed=5, ignore_eos=True)
    return GenerateRequest(SampleId(0, position, 0), (1, 40, 41, 50 + position % 50), params, "api")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nothing tells a test of these
            await asyncio.sleep(0.01)


async def opened(trainers: list[Trainer], tiny: Path, folder: Path, cores: dict[str, Any], **keys: Any) -> Fleet:
    ctx = context(folder, make_trainer(trainers, tiny), cores, **keys)
    fleet = Fleet(ctx, cores)
    await publish_and_sync(ctx, fleet.stage, 0)
    return fleet


async def test_d11_newcomer_takes_no_sample_before_it_has_the_current_weights(
    make_rollout: MakeRollout, trainers: list[Trainer], tiny: Path, tmp_path: Path
) -> None:
    fleet = await opened(trainers, tiny, tmp_path, {"rollout-0": make_rollout(slot_count=2)})
    ctx, stage = fleet.stage._ctx, fleet.stage
    await train(trainers[0])
    current = await publish_and_sync(ctx, stage, 1)
    found: list[Completion] = []

    async def ask(number: int) -> None:
        found.append(await stage.generate_one(asked(number)))

    async with asyncio.TaskGroup() as tasks:
        for number in range(24):
            tasks.create_task(ask(number))
        await until(lambda: len(found) >= 2)
        fleet.join("rollout-1", make_rollout(start_stale=True, slot_count=2))
        assert "rollout-1" not in stage.usable
    assert "rollout-1" in stage.usable
    assert {run.version for one in found for run in one.versions} == {current}
    assert {one.member_id for one in found} <= {"rollout-0", "rollout-1", ""}
    assert (await fleet.cores["rollout-1"].status()).generated_token_count > 0, "it works"
    await fleet.newcomers.close()


async def test_draining_server_hands_over_what_it_can_not_finish(
    make_rollout: MakeRollout, trainers: list[Trainer], tiny: Path, tmp_path: Path
) -> None:
    cores = {"rollout-0": make_rollout(), "rollout-1": make_rollout()}
    fleet = await opened(trainers, tiny, tmp_path, cores)
    ctx, stage = fleet.stage._ctx, fleet.stage
    leaving, stays = cores["rollout-1"], cores["rollout-0"]
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(stage.generate_one(asked(n, tokens=200))) for n in range(8)]
        await until(lambda: leaving.engine.counts().running > 0)
        fleet.roster.update(fleet.now(rollout_1=MemberState.DRAINING))
        assert stage.members() == ["rollout-0"]
        with contextlib.suppress(Exception):
            await leaving.drain(mutation(deadline_s=0.05))
        handed = leaving.engine.counts().running
        await leaving.hand_over(mutation())
        assert leaving.engine.counts().running == 0
        fleet.leave("rollout-1")
    answers = [task.result() for task in working]
    assert [len(one.token_ids) for one in answers] == [200] * 8
    assert {one.finish_reason for one in answers} == {FinishReason.LENGTH}
    assert ctx.counters.get("rollout/redispatched_samples", 0) == 0, "no failure of anybody"
    assert ctx.counters.get("rollout/resumed_samples", 0) == handed > 0
    made = (await stays.status()).generated_token_count + (await leaving.status()).generated_token_count
    assert made <= 8 * 200 + 8, "what was handed over was not made again"
    await fleet.newcomers.close()


async def test_server_that_dies_is_born_again_under_its_id_as_another_one(
    make_rollout: MakeRollout, trainers: list[Trainer], tiny: Path, tmp_path: Path
) -> None:
    fleet = await opened(trainers, tiny, tmp_path, {"rollout-0": make_rollout(), "rollout-1": make_rollout()})
    stage = fleet.stage
    first = fleet.cores["rollout-1"]
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(stage.generate_one(asked(n, tokens=100))) for n in range(8)]
        await until(lambda: first.engine.counts().running > 0)
        fleet.join("rollout-1", make_rollout(start_stale=True))
        assert not stage.is_usable("rollout-1")
    assert [len(task.result().token_ids) for task in working] == [100] * 8
    await until(lambda: stage.is_usable("rollout-1"))
    assert (await fleet.cores["rollout-1"].status()).version == stage.version
    assert stage.in_use() == ["rollout-0", "rollout-1"]
    await fleet.newcomers.close()


async def test_d6_samples_wait_for_a_joiner_when_the_last_server_has_left_and_not_for_ever(
    make_rollout: MakeRollout, trainers: list[Trainer], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("argosy.controller.stages.single.ROUND_PAUSE_S", 0.01)
    keys = {"argosy.startup_timeout_s": 30.0}
    fleet = await opened(trainers, tiny, tmp_path, {"rollout-0": make_rollout()}, **keys)
    stage = fleet.stage
    fleet.leave("rollout-0")
    single = asyncio.ensure_future(stage.generate_one(asked(0)))
    batch = asyncio.ensure_future(_batch(stage, [asked(1), asked(2)]))
    await asyncio.sleep(0.2)
    assert not single.done()
    assert not batch.done()
    await train(trainers[0])
    current = await publish_and_sync(stage._ctx, stage, 1)  # nobody is there to take it, and that ends nothing
    fleet.join("rollout-1", make_rollout(start_stale=True))
    assert {run.version for run in (await single).versions} == {current}
    assert len(single.result().token_ids) == 12
    assert [len(one.token_ids) for one in await batch] == [12, 12]
    fleet.leave("rollout-1")
    stage._ctx.config = stage._ctx.config.with_values({"argosy.startup_timeout_s": 0.2})
    for work in (stage.generate_one(asked(3)), _batch(stage, [asked(4)])):
        with pytest.raises(UnavailableError, match="no rollout server"):
            await asyncio.wait_for(work, 30)
    await fleet.newcomers.close()


async def _batch(stage: RolloutStage, requests: list[GenerateRequest]) -> list[Completion]:
    found: list[Completion] = []

    async def sink(completion: Completion) -> None:
        found.append(completion)

    await stage.generate(requests, sink)
    return found
