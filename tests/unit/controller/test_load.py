"""Prompts beyond the context, and how busy the servers were: what the loop makes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from argosy.config import Config
from argosy.controller.context import RunContext, Services
from argosy.controller.ledger import Ledger, read_segment
from argosy.controller.stages import load as load_module
from argosy.controller.stages.generation import GenerationStage
from argosy.controller.stages.load import ServerLoad
from argosy.controller.stages.rollout import RolloutStage
from argosy.membership.memory import MemoryMembership
from argosy.roles.rollout import Rollout
from argosy.rollout.core import HfRollout, HfRolloutOptions
from argosy.text.tokenizer import load_tokenizer
from argosy.types.errors import UnavailableError
from argosy.types.ids import SampleId
from argosy.types.records import Completion, FinishReason, GenerateRequest, RolloutStatus, SamplingParams
from unit.config.effects import recorded as services
from unit.config.effects.recorded import run_recorded


async def test_overlong_prompts_are_neither_scored_nor_trained(
    small_job: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One prompt of four: its samples are in the books as not judged, and the other twelve are trained."""
    real = services._Rollout.generate

    async def generate(
        self: services._Rollout, requests: Sequence[GenerateRequest], *, deadline_s: float
    ) -> AsyncIterator[Completion]:
        async for completion in real(self, requests, deadline_s=deadline_s):
            if completion.sample_id.position == 1 and completion.purpose == "train":
                yield Completion(
                    completion.sample_id, (), (), (), FinishReason.LENGTH, error="the prompt has 99 tokens"
                )
            else:
                yield completion

    monkeypatch.setattr(services._Rollout, "generate", generate)
    scored: list[SampleId] = []
    score = services._Reward.score

    async def noted(self: services._Reward, items: Sequence[object], *, deadline_s: float) -> object:
        scored.extend(item.sample_id for item in items)  # type: ignore[attr-defined]
        return await score(self, items, deadline_s=deadline_s)  # type: ignore[arg-type]

    monkeypatch.setattr(services._Reward, "score", noted)
    job = small_job.with_values({"trainer.total_training_steps": 2, "argosy.parity.enabled": False})
    recorded = await run_recorded(job, monkeypatch)
    assert recorded.metrics("rollout/overlong_prompts") == [4.0, 0.0]
    assert {sample.position for sample in scored[:12]} == {0, 2, 3}
    masks = recorded.batches[0].ragged("response_mask")
    trained = {
        sample.position
        for sample, count in zip(recorded.batches[0].sample_ids, masks.segment_sum(), strict=True)
        if count
    }
    assert trained == {0, 2, 3}
    rows = read_segment(recorded.folder / "ledger", 1)
    assert sum(row["state"] == "trained" for row in rows) == 12
    assert sum("not judged" in row["reason"] for row in rows if row["state"] == "dropped") == 4


async def test_the_load_of_real_servers_during_a_step(small_job: Config) -> None:
    folder = small_job.actor_rollout_ref.model.path
    options = HfRolloutOptions(folder, device="cpu", threads=1, slot_count=2, max_model_len=128)
    server = HfRollout(options, load_tokenizer(folder).decode)
    members: dict[str, Rollout] = {"rollout-0": server}
    load = ServerLoad(lambda: members)
    assert load.metrics() == {}

    async def generate(position: int, count: int) -> None:
        params = SamplingParams(60, ignore_eos=True)
        requests = [GenerateRequest(SampleId(0, position, k), (5, 6, 7, 8, 9), params) for k in range(count)]
        assert len([end async for end in server.generate(requests, deadline_s=60)]) == count

    await generate(0, 3)  # not watched
    async with load.watched():
        members["rollout-1"] = _Away()
        work = asyncio.create_task(generate(1, 4))
        while not work.done():
            await load._look()
            await asyncio.sleep(0)
        await work
    found = load.metrics()
    assert 0 < found["rollout/kv_used_frac"] <= 1
    assert found["rollout/running_samples/max"] == 2
    assert found["rollout/waiting_samples/max"] >= 2
    assert found["rollout/tokens_per_second"] > 0
    assert found["rollout/prompt_cache_hit_rate"] == 1.0  # the same prompt as before
    assert found["rollout/refused_samples"] == 0
    assert load.metrics() == {}
    await server.close()


async def test_counters_of_a_server_that_began_anew_count_from_zero() -> None:
    server = _Told(RolloutStatus(None, "ready", 0, 0, 4, 1000, 0, 64))
    load = ServerLoad(lambda: {"rollout-0": server})
    async with load.watched():
        server.told = replace(server.told, generated_token_count=50)
        await asyncio.sleep(0.05)
    found = load.metrics()
    assert 0 < found["rollout/tokens_per_second"] <= 50 / 0.05
    assert "rollout/kv_used_frac" not in found  # over before the first look: nobody knows


async def test_a_server_seen_first_within_a_step_does_not_bring_its_past() -> None:
    known = _Told(RolloutStatus(None, "ready", 0, 0, 4, 1000, 0, 64))
    members: dict[str, Rollout] = {"rollout-0": known}
    load = ServerLoad(lambda: members)
    began = time.perf_counter()
    async with load.watched():
        members["rollout-1"] = newcomer = _Told(RolloutStatus(None, "ready", 0, 0, 4, 10**9, 0, 64))
        await load._look()
        known.told = replace(known.told, generated_token_count=1030)
        newcomer.told = replace(newcomer.told, generated_token_count=10**9 + 20)
        await asyncio.sleep(0.05)
    found = load.metrics()
    assert 50 / (time.perf_counter() - began) <= found["rollout/tokens_per_second"] <= 50 / 0.05
    async with load.watched():
        del members["rollout-0"], members["rollout-1"]
    assert load.metrics() == {}


async def test_a_server_that_does_not_answer_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "ANSWER_TIMEOUT_S", 0.05)
    load = ServerLoad(lambda: {"rollout-0": _Told(RolloutStatus(None, "ready", 0, 0, 4, 0, 0, 64)), "hung": _Hung()})
    async with asyncio.timeout(5), load.watched():
        pass
    assert load.metrics()["rollout/tokens_per_second"] == 0


async def test_servers_that_get_no_samples_are_not_asked(tmp_path: Path) -> None:
    used, unused = (_Told(RolloutStatus(None, "ready", 0, 0, 4, 0, 0, 64)) for _ in range(2))
    roles = Services({"rollout-0": used, "rollout-1": unused}, *cast(Any, (None, None, None)))
    ctx = RunContext(Config(), "run", 1, roles, Ledger(tmp_path / "ledger", 1), MemoryMembership())
    rollout = RolloutStage(ctx)
    rollout.usable.discard("rollout-1")
    async with GenerationStage(ctx, rollout, lambda *_: None)._load.watched():
        pass
    assert (used.asked, unused.asked) == (2, 0)


class _Told(HfRollout):
    """Only its status is asked for."""

    def __init__(self, told: RolloutStatus) -> None:
        self.told = told
        self.asked = 0

    async def status(self) -> RolloutStatus:
        self.asked += 1
        return self.told


class _Away(_Told):
    def __init__(self) -> None:
        pass

    async def status(self) -> RolloutStatus:
        raise UnavailableError("gone")


class _Hung(_Away):
    async def status(self) -> RolloutStatus:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits so long")
