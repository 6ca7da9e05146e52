"""The router over real servers: routing, failures (case G11), limits of messages (F1), processes (F2), zeros (F11)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.rewards.connect import check_external, open_router
from argosy.controller.rewards.failures import RewardsUnusableError, check_failures
from argosy.controller.rewards.router import RewardRouter
from argosy.membership.memory import MemoryMembership
from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.custom import CustomFunction
from argosy.reward.pool import PoolOptions
from argosy.reward.service import add_to_server
from argosy.roles.reward import Reward
from argosy.rpc.gate import Gate
from argosy.rpc.options import RpcOptions
from argosy.rpc.retry import RetryPolicy
from argosy.rpc.server import RpcServer
from argosy.types.errors import ConfigError, StateError
from argosy.types.ids import SampleId
from argosy.types.records import (
    Failed,
    Member,
    MemberState,
    Outcome,
    RewardCapabilities,
    Scored,
    ScoreRequest,
    ScoreResult,
)

QUICK = RetryPolicy(max_attempts=3, first_backoff_s=0.01, max_backoff_s=0.05)
PATIENT = RetryPolicy(max_attempts=8, first_backoff_s=0.1, max_backoff_s=1.0)


class Core:
    """Scores by a rule, in this process."""

    def __init__(self, score: float = 1.0, *, sources: tuple[str, ...] = ("*",), **capabilities: Any) -> None:
        self.value = score
        self.known = RewardCapabilities(sources, **capabilities)
        self.seen: list[ScoreRequest] = []
        self.calls: list[int] = []
        self.stop_after: asyncio.Event | None = None

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        self.seen += items
        self.calls.append(len(items))
        return [ScoreResult(item.sample_id, Scored(self.value, {"acc": self.value > 0})) for item in items]

    async def capabilities(self) -> RewardCapabilities:
        return self.known


class Servers:
    """Starts and stops gRPC servers of reward cores."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def start(self, core: Reward, port: int = 0, options: RpcOptions | None = None) -> RpcServer:
        gate = Gate("reward")
        server = RpcServer.listen("127.0.0.1", port, gate=gate, options=options)
        await server.start()
        await server.serve(add_to_server(core, server.server, gate))
        self._stack.push_async_callback(server.stop, 0)
        return server


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        yield Servers(stack)


def external(**services: dict[str, Any]) -> Config:
    return Config().with_values({"argosy.reward.services": services, "argosy.startup_timeout_s": 1.0})


@asynccontextmanager
async def router(
    config: Config, membership: MemoryMembership | None = None, policy: RetryPolicy = QUICK
) -> AsyncIterator[RewardRouter]:
    await check_external(config, RpcOptions())
    async with open_router(config, RpcOptions(), policy, membership=membership) as opened:
        yield opened


def items(
    source: str = "toy", *, prompts: int = 2, n: int = 2, first: int = 0, response: str = "x", **more: Any
) -> list[ScoreRequest]:
    return [
        ScoreRequest(SampleId(0, position, k), source, "Why?", response, "42", **more)
        for position in range(first, first + prompts)
        for k in range(n)
    ]


@pytest.fixture(autouse=True)
def short_outages(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is down here stays so."""
    monkeypatch.setattr("argosy.controller.rewards.replicas._OUTAGE_S", 0.5)


async def score(opened: Reward, wanted: list[ScoreRequest]) -> dict[SampleId, Outcome]:
    results = await opened.score(wanted, deadline_s=20)
    assert [result.sample_id for result in results] == [item.sample_id for item in wanted]
    return {result.sample_id: result.outcome for result in results}


async def test_samples_go_to_the_services_of_their_source_and_are_combined(servers: Servers) -> None:
    numbers, tone, rest = Core(1.0), Core(0.5), Core(-1.0)
    config = external(
        numbers={"address": (await servers.start(numbers)).address, "data_sources": ["gsm8k"]},
        tone={"address": (await servers.start(tone)).address, "data_sources": ["gsm8k", "essays/*"], "weight": 0.5},
        rest={"address": (await servers.start(rest)).address},
    )
    async with router(config) as opened:
        opened.check_sources(["gsm8k", "essays/x", "other"])
        for source, expected in (("gsm8k", 1.25), ("essays/x", 0.25), ("other", -1.0)):
            found = await score(opened, items(source))
            assert [outcome.score for outcome in found.values() if isinstance(outcome, Scored)] == [expected] * 4
        metrics = opened.commit()
    assert (metrics["reward/gsm8k/mean"], metrics["reward/gsm8k/std"]) == (1.25, 0.0)
    assert metrics["reward_service/tone/mean"] == 0.5, "as the service gave it"
    assert metrics["reward_service/tone/calls"] == 4.0  # one for each prompt of two sources
    assert metrics["reward_service/rest/retries"] == 0.0
    assert metrics["reward_service/numbers/latency_s"] > 0


async def test_ids_and_messages_go_only_to_who_asks_for_them(servers: Servers) -> None:
    plain, curious = Core(), Core(needs_token_ids=True, needs_messages=True)
    config = external(
        plain={"address": (await servers.start(plain)).address},
        curious={"address": (await servers.start(curious)).address},
    )
    message = {"role": "user", "content": "Why?"}
    async with router(config) as opened:
        await score(opened, items(prompt_ids=(1, 2), response_ids=(3,), messages=(message,)))
    assert {(item.prompt_ids, item.response_ids, item.messages) for item in plain.seen} == {((), (), ())}
    assert all(item.prompt_ids == (1, 2) and item.messages == (message,) for item in curious.seen)


async def test_calls_are_no_larger_than_the_service_takes(servers: Servers) -> None:
    core = Core(max_batch_size=3)
    async with router(external(one={"address": (await servers.start(core)).address})) as opened:
        await score(opened, items(prompts=1, n=8))
    assert sorted(core.calls) == [2, 3, 3]


async def test_an_unknown_source_is_refused_at_the_start_with_its_names(servers: Servers) -> None:
    gsm, mine = Core(sources=("gsm8k",)), Core(sources=("mine/*",))
    config = external(
        gsm={"address": (await servers.start(gsm)).address, "data_sources": ["gsm8k", "math"]},
        mine={"address": (await servers.start(mine)).address},
    )
    async with router(config) as opened:
        opened.check_sources(["gsm8k", "mine/1"])
        with pytest.raises(ConfigError) as refused:
            opened.check_sources(["math", "gsm8k", "novels", "verse"])
    assert "no scorer knows the data sources 'novels', 'verse'" in refused.value.message
    assert "gsm: gsm8k, math; mine: mine/*" in refused.value.message
    assert "services.gsm.data_sources gives it 'math', which it doesn't know; it knows: gsm8k" in refused.value.message


async def test_an_external_server_that_is_not_there_is_named_at_the_start(servers: Servers) -> None:
    config = external(a={"address": "127.0.0.1:1"}, b={"address": (await servers.start(Core())).address})
    with pytest.raises(ConfigError, match=r"services\.a\.address: 127\.0\.0\.1:1 doesn't answer within"):
        async with router(config):
            pass


async def test_replicas_that_know_different_things_are_refused(servers: Servers) -> None:
    addresses = [(await servers.start(Core(sources=(name,)))).address for name in ("gsm8k", "math")]
    with pytest.raises(ConfigError, match=r"knows other data sources \(math\) than .* \(gsm8k\)"):
        async with router(external(a={"address": addresses})):
            pass
    addresses = [(await servers.start(Core(version=version))).address for version in ("1", "2")]
    with pytest.raises(
        ConfigError, match=r"services\.a\.address: .* has another version \(2\) than .* \(1\): they can't"
    ):
        async with router(external(a={"address": addresses})):
            pass


async def test_a_server_of_something_else_is_refused(servers: Servers) -> None:
    server = RpcServer.listen("127.0.0.1", 0)
    await server.start()
    await server.serve([])
    try:
        with pytest.raises(ConfigError, match=r"services\.a\.address: .* is no reward service that can be used"):
            async with router(external(a={"address": server.address})):
                pass
    finally:
        await server.stop(0)


async def test_g11_a_verifier_that_raises_on_each_call_ends_the_run_with_the_cause(
    servers: Servers, tmp_path: Path
) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def compute_score(**kwargs):\n    raise OSError('the answer sheet is gone')\n")
    core = RewardScorers(
        RewardOptions(PoolOptions(worker_count=1, timeout_s=10), CustomFunction(str(file), "compute_score", {}))
    )
    try:
        async with router(external(mine={"address": (await servers.start(core)).address})) as opened:
            found = await score(opened, items())
            metrics = opened.commit()
    finally:
        core.shutdown()
    assert {outcome.reason for outcome in found.values() if isinstance(outcome, Failed)} == {"exception"}
    assert (metrics["reward/toy/failed"], metrics["reward_service/mine/retries"]) == (4.0, 4.0)
    assert "reward/toy/mean" not in metrics, "no mean of nothing"
    with pytest.raises(RewardsUnusableError, match=r"4 of 4 samples could not be judged.*the answer sheet is gone"):
        check_failures(found, 0.5)


async def test_g11_a_service_that_goes_down_and_comes_back_costs_no_sample(servers: Servers) -> None:
    core = Core()
    server = await servers.start(core)
    async with router(external(mine={"address": server.address}), policy=PATIENT) as opened:
        await score(opened, items())
        await server.stop(0)
        scoring = asyncio.ensure_future(score(opened, items()))
        await asyncio.sleep(0.02)
        await servers.start(core, port=server.port)
        assert {type(outcome) for outcome in (await scoring).values()} == {Scored}
        assert {type(outcome) for outcome in (await score(opened, items())).values()} == {Scored}
        assert opened.commit()["reward_service/mine/retries"] > 0


async def test_g11_an_optional_service_that_is_down_moves_no_prompt_and_is_told(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    numbers, tone = Core(1.0), Core(0.5)
    server = await servers.start(tone)
    config = external(
        numbers={"address": (await servers.start(numbers)).address},
        tone={"address": server.address, "required": False, "max_error_rate": 0.55},
    ).with_values({"argosy.reward.error_window": 8})
    async with router(config) as opened:
        before = await score(opened, items())
        assert opened.commit()["reward_service/tone/failed_fraction"] == 0.0
        await server.stop(0)
        found = await score(opened, items())
        metrics = opened.commit()
        for outcome in (*before.values(), *found.values()):
            assert isinstance(outcome, Scored)
            assert outcome.score == 1.5, "what it usually gives"
        assert (metrics["reward_service/tone/failed_fraction"], metrics["reward/toy/failed"]) == (1.0, 0.0)
        assert "reward service tone failed for 4 of 4 samples, which count without it" in caplog.text
        await score(opened, items(prompts=1))
        with pytest.raises(RewardsUnusableError, match=r"'tone': 6 of its last 10 .*\.tone\.max_error_rate=0\.55"):
            opened.commit()


async def test_where_repeating_is_forbidden_a_call_that_is_too_large_is_sent_once(servers: Servers) -> None:
    """Its answers may be what was too large: then all of it was judged. What is over 3 MiB goes in several calls."""

    class Wordy(Core):
        async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
            await super().score(items, deadline_s=deadline_s)
            return [ScoreResult(item.sample_id, Scored(1.0, {"why": "y" * 2_000_000})) for item in items]

    core = Wordy(repeat_forbidden=True)
    server = await servers.start(core, options=RpcOptions(max_message_bytes=4 << 20))
    async with router(external(mine={"address": server.address})) as opened:
        wanted = items(prompts=1, n=4, response="x" * 1_000_000)
        found = await score(opened, wanted)
    assert sorted(core.calls) == [1, 3]
    assert [outcome.reason for outcome in found.values() if isinstance(outcome, Failed)] == ["too_large"] * 3
    assert isinstance(found[wanted[3].sample_id], Scored)


async def test_a_run_that_no_longer_follows_its_servers_ends(servers: Servers) -> None:
    class Breaks(MemoryMembership):
        async def watch(self, role: str | None = None) -> AsyncIterator[tuple[Member, ...]]:
            async for snapshot in super().watch(role):
                yield snapshot
                raise KeyError("pool")

    membership = Breaks()
    server = await servers.start(Core())
    member = Member("reward-mine-0", "reward", server.address, "life", "mine", state=MemberState.READY)
    registered = await membership.register(member)
    told: list[str] = []

    async def use() -> None:
        async with router(external(mine={}), membership) as opened:
            await asyncio.sleep(0.05)
            try:
                await score(opened, items())
            except StateError as error:
                told.append(error.message)

    with pytest.raises(KeyError):
        await use()
    assert told == ["the reward servers are no longer followed: KeyError: 'pool'"]
    await registered.close()
    await membership.close()


async def test_g11_a_service_that_is_down_for_half_of_a_batch_fails_that_half_only(servers: Servers) -> None:
    core = Core(0.25)
    server = await servers.start(core)
    async with router(external(mine={"address": server.address})) as opened:
        found = await score(opened, items(prompts=2))
        await server.stop(0)
        late = [ScoreRequest(SampleId(0, 9, k), "toy", "", "", None) for k in range(4)]
        found |= await score(opened, late)
        metrics = opened.commit()
    assert [outcome.score for outcome in found.values() if isinstance(outcome, Scored)] == [0.25] * 4
    failures = [outcome for outcome in found.values() if isinstance(outcome, Failed)]
    assert [failure.reason for failure in failures] == ["unavailable"] * 4
    assert (metrics["reward/toy/failed"], metrics["reward/toy/mean"]) == (4.0, 0.25)
    assert check_failures(found, 0.5)["reward/failed_fraction"] == 0.5
    with pytest.raises(RewardsUnusableError, match="4 of 8 samples could not be judged"):
        check_failures(found, 0.49)


async def test_members_join_and_leave_as_membership_says(servers: Servers) -> None:
    membership, cores = MemoryMembership(), [Core(1.0), Core(2.0)]
    started = [await servers.start(core) for core in cores]

    def member(number: int, state: MemberState = MemberState.READY) -> Member:
        return Member(f"reward-mine-{number}", "reward", started[number].address, "life", "mine", state=state)

    async def value(opened: RewardRouter) -> set[float]:
        await asyncio.sleep(0.05)
        found = await score(opened, items(prompts=4, n=1))
        return {outcome.score for outcome in found.values() if isinstance(outcome, Scored)}

    first = await membership.register(member(0))
    async with router(external(mine={}), membership) as opened:
        assert await value(opened) == {1.0}
        await membership.register(member(1, MemberState.JOINING))
        assert await value(opened) == {1.0}, "it isn't ready"
        second = await membership.register(member(1))
        assert 2.0 in await value(opened)
        await first.update(state=MemberState.DRAINING)
        assert await value(opened) == {2.0}
        await first.close()
        await second.close()
        assert await value(opened) == set()
    await membership.close()


async def test_f1_a_message_over_the_limit_fails_its_sample_alone_and_names_the_limit(servers: Servers) -> None:
    """A server in another language has gRPC's own limit of 4 MiB. What fits is split; what can't fit isn't repeated."""
    core = Core()
    small = RpcOptions(max_message_bytes=4 << 20)
    server = await servers.start(core, options=small)
    async with router(external(mine={"address": server.address})) as opened:
        fitting = items(prompts=1, n=20, response="x" * 1_000_000)
        assert {type(outcome) for outcome in (await score(opened, fitting)).values()} == {Scored}
        huge = ScoreRequest(SampleId(0, 0, 0), "toy", "", "x" * 4_194_305, None)
        found = await score(opened, [huge, *items(prompts=1, n=3)[1:]])
    outcome = found[huge.sample_id]
    assert isinstance(outcome, Failed)
    assert outcome.reason == "too_large"
    assert "4194304" in outcome.message
    assert {type(found[item.sample_id]) for item in items(prompts=1, n=3)[1:]} == {Scored}


async def test_f2_workers_start_and_score_after_grpc_has_started(servers: Servers) -> None:
    async with router(external(mine={"address": (await servers.start(Core())).address})) as opened:
        await score(opened, items())
        scorers = RewardScorers(RewardOptions(PoolOptions(worker_count=1, timeout_s=10)))  # processes, gRPC under way
        try:
            async with asyncio.timeout(60):
                address = (await servers.start(scorers)).address
                async with router(external(numbers={"address": address})) as other:
                    found = await score(other, items("openai/gsm8k", prompts=100, response="#### 42"))
        finally:
            scorers.shutdown()
        await score(opened, items())
    assert [outcome.score for outcome in found.values() if isinstance(outcome, Scored)] == [1.0] * 200


async def test_f11_zero_is_a_score(servers: Servers) -> None:
    async with router(external(mine={"address": (await servers.start(Core(0.0))).address})) as opened:
        found = await score(opened, items())
    assert list(found.values()) == [Scored(0.0, {"acc": False})] * 4


async def test_running_figures_of_validation_and_of_this_step_do_not_count(servers: Servers) -> None:
    core = Core(3.0)
    config = external(mine={"address": (await servers.start(core)).address, "normalize": True})
    async with router(config) as opened:
        assert await once(opened, core, 3.0, position=1) == 3.0, "nothing is known yet"
        assert await once(opened, core, 5.0, position=2) == 5.0, "nor within the first step"
        opened.commit()
        assert await once(opened, core, 4.0, position=3) == 0.0
        assert await once(opened.validation(), core, 100.0, position=3) == 96.0
        assert "reward/toy/mean" in opened.drain_validation()
        state = json.loads(json.dumps(opened.state()))
    async with router(config) as resumed:
        resumed.restore(state)
        assert await once(resumed, core, 5.0, position=3) == 1.0


async def once(reward: Reward, core: Core, value: float, position: int) -> float:
    core.value = value
    [outcome, *_] = (await score(reward, items(prompts=1, first=position))).values()
    assert isinstance(outcome, Scored)
    return outcome.score
