"""Work is shared by speed: slots first, then what was seen; a lost server's samples go on elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.context import RunContext, Services
from argosy.controller.loop import first_cause
from argosy.controller.stages.capacity import LEAST_SHARE, Capacities
from argosy.controller.stages.prompt import make_requests
from argosy.controller.stages.rollout import RolloutStage, assign_groups
from argosy.types.errors import DeadlineError, UnavailableError
from argosy.types.ids import GroupId, PolicyVersion
from argosy.types.records import (
    Completion,
    FinishReason,
    GenerateRequest,
    Prompt,
    RolloutStatus,
    SamplingParams,
    VersionRun,
)

VERSION = PolicyVersion("l0", 0, "00")


def requests(groups: int, n: int = 4) -> list[GenerateRequest]:
    prompts = [Prompt(GroupId(0, position), (1, 2, 3), "s", "1") for position in range(groups)]
    return make_requests(prompts, n, SamplingParams(max_tokens=40), "train")


def answer(request: GenerateRequest, count: int, reason: FinishReason = FinishReason.STOP) -> Completion:
    ids = tuple(range(count))
    return Completion(request.sample_id, ids, (0.0,) * count, (VersionRun(VERSION, count),), reason)


def measured(capacities: Capacities, member: str, tokens: int, seconds: float) -> None:
    share = capacities.begin(member, requests(1, 1), 10.0)
    share.take(answer(requests(1, 1)[0], tokens), "", 10.0 + seconds)
    capacities.end(share)


def test_slots_count_until_speeds_are_known() -> None:
    capacities = Capacities({})
    capacities.set_slots("big", 48)
    capacities.set_slots("small", 16)
    assert capacities.weights(["big", "small"]) == {"big": 48.0, "small": 16.0}
    shares = assign_groups(requests(16), capacities.weights(["big", "small"]))
    assert {member: len(share) for member, share in shares.items()} == {"big": 48, "small": 16}


def test_a_slow_server_gets_less_and_a_stuck_one_not_nothing() -> None:
    capacities = Capacities({})
    measured(capacities, "fast", 3000, 1.0)
    measured(capacities, "slow", 1000, 1.0)
    shares = assign_groups(requests(16), capacities.weights(["fast", "slow"]))
    assert {member: len(share) for member, share in shares.items()} == {"fast": 48, "slow": 16}
    for _ in range(20):
        measured(capacities, "slow", 100, 100.0)
    weights = capacities.weights(["fast", "slow"])
    assert weights["slow"] == pytest.approx(LEAST_SHARE * weights["fast"])
    weights = capacities.weights(["fast", "newcomer"])
    assert weights["newcomer"] == pytest.approx(weights["fast"]), "per slot as fast as those that were measured"


def test_tokens_that_a_request_came_with_are_not_this_servers() -> None:
    capacities = Capacities({"a": "pool"})
    [request] = requests(1, 1)
    share = capacities.begin("a", [request], 0.0)
    share.given = {request.key: 30}
    share.take(answer(request, 40), request.key, 1.0)
    capacities.end(share)
    metrics = capacities.metrics(["a"])
    assert (metrics["rollout/pools/pool/generated_tokens"], metrics["rollout/pools/pool/samples"]) == (10.0, 1.0)
    assert capacities.metrics(["a"])["rollout/pools/pool/samples"] == 0.0, "each step's own"


class Server:
    """Answers 10 tokens after `wait_s` per sample, one after the other; `dies_after` so many it is gone."""

    def __init__(self, wait_s: float, dies_after: int | None = None) -> None:
        self.wait_s = wait_s
        self.dies_after = dies_after
        self.served: list[GenerateRequest] = []

    async def generate(self, asked: Sequence[GenerateRequest], *, deadline_s: float) -> AsyncIterator[Completion]:
        for place, request in enumerate(asked):
            if self.dies_after is not None and len(self.served) >= self.dies_after:
                for rest in asked[place:]:
                    yield answer(rest, 4, FinishReason.FAILED)
                raise UnavailableError("gone")
            await asyncio.sleep(self.wait_s)
            self.served.append(request)
            yield answer(request, max(10, len(request.generated.token_ids)))

    async def status(self) -> RolloutStatus:
        if self.dies_after is not None and len(self.served) >= self.dies_after:
            raise UnavailableError("gone")
        return RolloutStatus(VERSION, "ready", 0, 0, 8, 0, 0, 99)


class Ledger:
    def dispatched(self, samples: Sequence[object], member: str) -> None:
        pass


def stage_of(servers: dict[str, Server], **more: Any) -> RolloutStage:
    everything: Any = {"reward": None, "policy": None, "reference": None}
    services = Services(rollouts=servers, **(everything | more))  # type: ignore[arg-type]
    nothing: Any = None
    ledger: Any = Ledger()
    stage = RolloutStage(RunContext(Config(), "run", 1, services, ledger, nothing))
    stage.version = VERSION
    return stage


async def test_shares_follow_the_speed_that_was_seen() -> None:
    servers = {"fast": Server(0.001), "slow": Server(0.01)}
    stage = stage_of(servers)

    async def sink(_: Completion) -> None:
        pass

    await stage.generate(requests(8), sink)
    assert [len(server.served) for server in servers.values()] == [16, 16]
    for server in servers.values():
        server.served.clear()
    await stage.generate(requests(8), sink)
    assert len(servers["slow"].served) < len(servers["fast"].served) / 2
    assert stage.metrics()["rollout/pools/default/samples"] == 64


async def test_d6_what_a_dead_server_had_begun_goes_on_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argosy.controller.stages.rollout.ROUND_PAUSE_S", 0.0)
    servers = {"rollout-a-0": Server(0.0), "rollout-b-0": Server(0.0, dies_after=3)}
    stage = stage_of(servers, pools={"rollout-a-0": "a", "rollout-b-0": "b"})
    seen: Counter[object] = Counter()

    async def sink(completion: Completion) -> None:
        seen[completion.sample_id] += 1

    asked = requests(6)
    await stage.generate(asked, sink)
    assert seen == Counter(request.sample_id for request in asked), "each exactly once"
    resumed = [request for request in servers["rollout-a-0"].served if request.generated.token_ids]
    assert len(resumed) == 9
    assert all(len(request.generated.token_ids) == 4 for request in resumed)
    metrics = stage.metrics()
    assert (metrics["rollout/pools/a/servers"], metrics["rollout/pools/b/servers"]) == (1.0, 0.0)


class Silent(Server):
    """Takes samples and never answers."""

    async def generate(self, asked: Sequence[GenerateRequest], *, deadline_s: float) -> AsyncIterator[Completion]:
        raise DeadlineError("not finished within the deadline")
        yield

    async def status(self) -> RolloutStatus:
        return RolloutStatus(VERSION, "stuck", 0, 0, 8, 0, 0, 99)


async def test_d6_a_server_that_never_answers_costs_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argosy.controller.stages.rollout.ROUND_PAUSE_S", 0.0)
    well = Server(0.0)
    stage = stage_of({"silent": Silent(0.0), "well": well})
    seen: list[Completion] = []

    async def sink(completion: Completion) -> None:
        seen.append(completion)

    await stage.generate(requests(4), sink)
    assert len(seen) == len(well.served) == 16
    assert stage.usable == {"well"}
    alone = stage_of({"silent": Silent(0.0)})
    with pytest.raises(ExceptionGroup) as caught:
        await alone.generate(requests(1), sink)
    assert isinstance(first_cause(caught.value), DeadlineError)


async def test_a_server_that_is_gone_for_good_is_not_asked() -> None:
    lost: set[str] = set()
    stage = stage_of({"x": Server(0.0), "y": Server(0.0)}, lost=lost)
    assert stage.members() == ["x", "y"]
    lost.add("y")
    assert stage.members() == ["x"]
    assert stage.usable == {"x"}
