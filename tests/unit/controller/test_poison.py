"""A sample that servers die of is dropped after a few of them, alone: the others are made, and no server is blamed."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from argosy.config import Config
from argosy.controller.context import Services
from argosy.controller.ledger import Ledger, read_segment
from argosy.controller.stages import rollout as batches
from argosy.controller.stages import single
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.running import POISONOUS
from argosy.controller.vitals import Vitals
from argosy.types.errors import UnavailableError
from argosy.types.ids import SampleId
from argosy.types.records import Completion, Failed, FinishReason, GenerateRequest, SamplingParams
from unit.config.effects import recorded

POISON = SampleId(0, 3, 0)


class Mortal:
    """Loses everything that it has when the poison is among it, and is back at once."""

    def __init__(self) -> None:
        self.running: dict[SampleId, asyncio.Event] = {}
        self.deaths: list[set[SampleId]] = []
        self.poison: SampleId | None = POISON
        self.always = False

    async def status(self) -> Any:
        return types.SimpleNamespace(slot_count=8, state="ready", version=None, engine="x", capabilities={})

    async def generate(self, requests: list[GenerateRequest], **_: object) -> AsyncIterator[Completion]:
        died = asyncio.Event()
        self.running |= {request.sample_id: died for request in requests}
        try:
            await asyncio.sleep(0.005)
            if died.is_set() or self.always or self.poison in self.running:
                if not died.is_set():
                    self.deaths.append(set(self.running))
                    for other in self.running.values():
                        other.set()
                raise UnavailableError("connection lost")
            for request in requests:
                yield Completion(request.sample_id, (1,), (0.0,), (), FinishReason.STOP)
        finally:
            for request in requests:
                self.running.pop(request.sample_id, None)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RolloutStage, list[Mortal], dict[str, float]]:
    monkeypatch.setattr(single, "ROUND_PAUSE_S", 0.001)
    monkeypatch.setattr(batches, "ROUND_PAUSE_S", 0.001)
    servers = [Mortal(), Mortal()]
    counts: dict[str, float] = {}
    services = Services(
        rollouts=cast(Any, {"a": servers[0], "b": servers[1]}), reward=cast(Any, None), policy=cast(Any, None),
        reference=None,
    )  # fmt: skip

    def count(name: str, amount: float = 1) -> None:
        counts[name] = counts.get(name, 0) + amount

    ctx = types.SimpleNamespace(
        config=Config(), deadline_s=5.0, count=count, services=services, ledger=Ledger(tmp_path, 1), vitals=Vitals()
    )
    return RolloutStage(cast(Any, ctx)), servers, counts


def requests(count: int = 8) -> list[GenerateRequest]:
    return [GenerateRequest(SampleId(0, place, 0), (1,), SamplingParams(4), cast(Any, "api")) for place in range(count)]


def check(found: dict[SampleId, Completion], servers: list[Mortal], counts: dict[str, float]) -> None:
    poisoned = found.pop(POISON)
    assert {one.finish_reason for one in found.values()} == {FinishReason.STOP}
    assert poisoned.finish_reason is FinishReason.FAILED
    assert isinstance(poisoned.outcome, Failed)
    assert poisoned.outcome.reason == POISONOUS
    assert "servers in a row failed" in poisoned.outcome.message
    assert counts["rollout/poisonous_samples"] == 1
    deaths = [death for server in servers for death in server.deaths]
    assert 2 < len(deaths) <= 4, "k servers, not all of them again and again"
    assert {POISON} in deaths, "the last one had nothing else"


async def test_of_single_samples(fleet: tuple[RolloutStage, list[Mortal], dict[str, float]]) -> None:
    rollout, servers, counts = fleet
    async with asyncio.timeout(30):
        ends = await asyncio.gather(*(rollout.generate_one(request) for request in requests()))
    check({one.sample_id: one for one in ends}, servers, counts)


async def test_of_a_batch(fleet: tuple[RolloutStage, list[Mortal], dict[str, float]]) -> None:
    rollout, servers, counts = fleet
    found: dict[SampleId, Completion] = {}

    async def sink(completion: Completion) -> None:
        assert completion.sample_id not in found
        found[completion.sample_id] = completion

    async with asyncio.timeout(30):
        await rollout.generate(requests(), sink)
    check(found, servers, counts)


async def test_where_no_server_makes_anything_no_sample_is_blamed(
    fleet: tuple[RolloutStage, list[Mortal], dict[str, float]],
) -> None:
    rollout, servers, counts = fleet
    for server in servers:
        server.always, server.poison = True, None
    async with asyncio.timeout(30):
        with pytest.raises(UnavailableError, match="could not be generated"):
            await asyncio.gather(*(rollout.generate_one(request) for request in requests(3)))
    assert "rollout/poisonous_samples" not in counts


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_a_run_masks_it_and_goes_on(
    small_job: Config, monkeypatch: pytest.MonkeyPatch, max_staleness: int
) -> None:
    """The others of its group are trained without it; the books say what became of it."""
    poison, generate = SampleId(0, 1, 2), recorded._Rollout.generate
    monkeypatch.setattr(single, "ROUND_PAUSE_S", 0.001)
    monkeypatch.setattr(batches, "ROUND_PAUSE_S", 0.001)

    async def mortal(self: Any, requests: list[GenerateRequest], **named: Any) -> AsyncIterator[Completion]:
        if poison in [request.sample_id for request in requests]:
            raise UnavailableError("connection lost")
        async for completion in generate(self, requests, **named):
            yield completion

    monkeypatch.setattr(recorded._Rollout, "generate", mortal)
    job = small_job.with_values({"argosy.max_staleness": max_staleness, "argosy.reward.max_error_rate": 0.5})
    run = await recorded.run_recorded(job, monkeypatch)
    rows = [row for step in (1, 2, 3) for row in read_segment(run.folder / "ledger", step)]
    [dropped] = [row for row in rows if row["state"] != "trained"]
    assert dropped["sample_id"] == str(poison)
    assert "not judged" in dropped["reason"]
    assert len(rows) == 48
    assert run.metrics("rollout/poisonous_samples")[-1] == 1
