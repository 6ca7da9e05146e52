"""Which reward services there are, what their servers see, and what the controller makes of what they say."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from argosy.config import Config, load
from argosy.config.schema import REWARD_KINDS
from argosy.controller.launch.children import for_services
from argosy.controller.launch.fleet import LocalFleet
from argosy.controller.launch.plan import remote_counts, services_of
from argosy.controller.launch.process import ChildSpec
from argosy.controller.rewards.connect import open_router
from argosy.controller.rewards.failures import RewardsUnusableError
from argosy.membership.etcd_client import EtcdOptions
from argosy.reward.build import BUILDERS, build_core
from argosy.rpc.host import Service, _join_pool
from argosy.rpc.options import RpcOptions
from argosy.rpc.retry import RetryPolicy
from argosy.types.errors import ConfigError
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Outcome, RewardCapabilities, Scored, ScoreRequest, ScoreResult
from unit.config.effects.recorded import run_recorded
from unit.config.effects.support import problems

TWO = {
    "numbers": {"count": 2, "data_sources": ["gsm8k"], "service": {"worker_count": 5}, "env": {"MY_KEY": "sk-1"}},
    "mine": {"custom_reward_function": {"path": "reward.py", "name": "f", "reward_kwargs": {"a": 1}}, "weight": 0.5},
    "outside": {"address": ["localhost:50051", "localhost:50052"], "data_sources": ["essays/*"]},
}
REWARD = Service("reward", "", build=lambda _: None, add_to_server=lambda *_: [])


def children(config: Config) -> dict[str, ChildSpec]:
    fleet = LocalFleet(config, config.run_folder, counts={"reward": services_of(config)["reward"]})
    return {one.member_id: fleet._children.spec(one) for one in fleet._planned}


class Flaky:
    """Fails on each sample so many times, then scores 1."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.tries = 0

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        self.tries += 1
        outcome: Outcome = Failed("exception", "boom") if self.tries <= self.failures else Scored(1.0)
        return [ScoreResult(item.sample_id, outcome) for item in items]

    async def capabilities(self) -> RewardCapabilities:
        return RewardCapabilities(("*",))


CORE = object()
"""Stands for what a builder makes."""
built: list[Config] = []


def build(config: Config) -> object:
    built.append(config)
    return CORE


def test_kind(monkeypatch: pytest.MonkeyPatch, job: Config) -> None:
    """Each kind has a builder, which gets the configuration."""
    assert set(BUILDERS) == set(REWARD_KINDS)
    monkeypatch.setitem(BUILDERS, "judge", f"{__name__}:build")
    config = load(["argosy.reward.kind=judge"])
    assert build_core(config) is CORE
    assert built == [config]
    assert "argosy.reward.kind: got 'rulez'" in problems(job.with_values({"argosy.reward.kind": "rulez"}))
    monkeypatch.setitem(BUILDERS, "judge", "argosy.reward.no_such_module:build")
    with pytest.raises(ConfigError, match=r"argosy\.reward\.kind=judge can't be loaded here.*no_such_module"):
        build_core(load(["argosy.reward.kind=judge"]))


def test_services(job: Config) -> None:
    """What is started for them, under which names, and what each of their servers sees."""
    config = job.with_values({"argosy.reward.services": TWO})
    assert list(children(job)) == ["reward-0"]
    found = children(config)
    assert list(found) == ["reward-numbers-0", "reward-numbers-1", "reward-mine-0"], (
        "the outside ones are there already"
    )
    assert list(found["reward-mine-0"].argv[-2:]) == ["--name", "mine"]
    assert dict(found["reward-numbers-0"].env) == {"MY_KEY": "sk-1"}
    assert {child.group for child in found.values()} == {"reward numbers", "reward mine"}
    arguments = argparse.Namespace(pool=None, name="mine")
    mine = _join_pool(REWARD, config, arguments)
    assert arguments.pool == "mine", "membership tells the services apart by it"
    assert (mine.custom_reward_function.path, mine.custom_reward_function.name) == ("reward.py", "f")
    assert mine.custom_reward_function.reward_kwargs == {"a": 1}
    assert mine.argosy.reward.worker_count == 2
    numbers = _join_pool(REWARD, config, argparse.Namespace(pool=None, name="numbers"))
    assert (numbers.argosy.reward.worker_count, numbers.custom_reward_function.path) == (5, None)
    with pytest.raises(ConfigError, match="numbers, mine, outside"):
        _join_pool(REWARD, config, argparse.Namespace(pool=None, name=None))
    with pytest.raises(ConfigError, match="--name mine: only reward servers"):
        _join_pool(Service("trainer", "", lambda _: None, lambda *_: []), config, argparse.Namespace(name="mine"))


def test_secrets_of_reward_services_are_never_written(job: Config, tmp_path: Path) -> None:
    config = job.with_values({"argosy.reward.services": TWO})
    config.save(tmp_path / "config.yaml")
    assert "sk-1" not in (tmp_path / "config.yaml").read_text()
    for_services(config, EtcdOptions(("localhost:1",)), tmp_path).save(tmp_path / "services.yaml")
    assert "sk-1" not in (tmp_path / "services.yaml").read_text()


@pytest.mark.parametrize(
    ("services", "message"),
    [
        ({"a": {"wieght": 2}}, "argosy.reward.services.a.wieght: no such key"),
        ({"a": {"count": 0}}, "argosy.reward.services.a.count: got 0"),
        ({"A b": {}}, "argosy.reward.services: 'A b' is no name"),
        ({"a": {"kind": "rulez"}}, "argosy.reward.services.a: argosy.reward.kind: got 'rulez'"),
        ({"a": {"service": {"max_error_rate": 1}}}, "argosy.reward.services.a.service.max_error_rate: is the same for"),
        ({"a": {"service": {"nonsense": 1}}}, "argosy.reward.services.a.service.nonsense"),
        ({"a": {"service": {"worker_count": 0}}}, "argosy.reward.services.a: argosy.reward.worker_count: got 0"),
        ({"a": {"remote": True}}, "argosy.reward.services.a.remote: got true without argosy.membership.endpoints"),
        ({"a": {"address": "here"}}, "argosy.reward.services.a.address: got 'here', wants host:port"),
        ({"a": {"address": "here:1", "kind": "rules"}}, "argosy.reward.services.a.kind: is for a service that is"),
        ({"a": {"clip_min": 1, "clip_max": 1}}, "argosy.reward.services.a.clip_min: got 1 with clip_max=1"),
        ({"a": {"data_sources": ["a*b"]}}, "argosy.reward.services.a.data_sources: got 'a*b'"),
        ({"a": {"weight": 0}}, "argosy.reward.services: every weight is 0"),
        ({"a": {"max_error_rate": 1.5}}, "argosy.reward.services.a.max_error_rate: got 1.5, wants a share from 0 to 1"),
        ({"a": {"env": {"A=B": "x"}}}, "argosy.reward.services.a.env: 'A=B' is no name"),
    ],
)
def test_services_that_make_no_sense(job: Config, services: dict[str, object], message: str) -> None:
    assert message in problems(job.with_values({"argosy.reward.services": services}))


def test_a_function_of_the_run_must_be_given_to_a_service(job: Config) -> None:
    config = job.with_values({"argosy.reward.services": TWO, "custom_reward_function.path": "reward.py"})
    assert "custom_reward_function.path: which of argosy.reward.services is it?" in problems(config)


def test_remote_services_are_waited_for_not_started(job: Config) -> None:
    config = job.with_values({
        "argosy.reward.services": {"here": {}, "there": {"remote": True, "count": 2}},
        "argosy.membership.endpoints": ["etcd:2379"],
    })  # fmt: skip
    assert list(children(config)) == ["reward-here-0"]
    assert remote_counts(config) == {("reward", "there"): 2}
    assert problems(config) == ""


async def test_sample_attempts() -> None:
    """A sample that failed so often is given up."""
    for attempts, expected in ((2, Failed("exception", "boom")), (3, Scored(1.0))):
        config = load([f"argosy.reward.sample_attempts={attempts}"])
        item = ScoreRequest(SampleId(0, 0, 0), "toy", "", "", None)
        policy, cores = RetryPolicy(first_backoff_s=0.001), {"default": Flaky(failures=2)}
        async with open_router(config, RpcOptions(), policy, cores=cores) as router:
            assert [result.outcome for result in await router.score([item], deadline_s=10)] == [expected]


@pytest.mark.parametrize("limit", [None, 0.5])
async def test_a_services_own_max_error_rate(limit: float | None) -> None:
    """argosy.reward.services.NAME.max_error_rate: of an optional service, whose failures fail no sample."""
    services = {"right": {}, "tone": {"required": False, "max_error_rate": limit}}
    config = load([]).with_values({"argosy.reward.services": services, "argosy.reward.error_window": 2})
    cores = {"right": Flaky(failures=0), "tone": Flaky(failures=99)}
    items = [ScoreRequest(SampleId(0, 0, k), "toy", "", "", None) for k in range(2)]
    async with open_router(config, RpcOptions(), RetryPolicy(first_backoff_s=0.001), cores=cores) as router:
        assert [result.outcome for result in await router.score(items, deadline_s=10)] == [
            Scored(1.0, {"right/score": 1.0})
        ] * 2
        if limit is None:
            assert router.commit()["reward_service/tone/failed_fraction"] == 1.0
        else:
            with pytest.raises(
                RewardsUnusableError, match=r"'tone': 2 of its last 2 samples .*tone\.max_error_rate=0\.5"
            ):
                router.commit()


def make_each_fourth_rare(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[3::4]:
        row["data_source"] = "rare"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


async def test_error_window(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of each batch always fails, which the limit lets pass: but it is all that there is of one source."""
    make_each_fourth_rare(Path(job.data.train_files[0]))

    def outcome(sample: SampleId) -> Outcome:
        return Failed("timeout", "gone") if sample.position % 4 == 3 else Scored(float(sample.k))

    job = job.with_values({"trainer.val_before_train": False, "data.shuffle": False})
    recorded = await run_recorded(job, monkeypatch, outcome=outcome)
    assert recorded.metrics("reward/failed_fraction") == [0.25, 0.25]
    changed = job.with_values({
        "argosy.reward.error_window": 4, "trainer.default_local_dir": f"{job.run_folder}-2"
    })  # fmt: skip
    with pytest.raises(RewardsUnusableError, match=r"data source 'rare': 4 of its last 4 samples could not be judged"):
        await run_recorded(changed, monkeypatch, outcome=outcome)
