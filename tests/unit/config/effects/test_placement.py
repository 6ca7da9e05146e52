"""Interpreters and environments of services, rollout pools, and shared devices."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from argosy.config import Config, find_problems, load, load_resolved
from argosy.config.pools import choose_pool
from argosy.config.schema.services import HIDDEN
from argosy.controller.launch.fleet import LocalFleet
from argosy.controller.launch.plan import plan_members, remote_counts, services_of
from argosy.controller.launch.process import ChildSpec
from argosy.rpc.host import Service, _join_pool
from argosy.trainer.build import options_from
from argosy.types.errors import ConfigError
from unit.config.effects.recorded import run_recorded
from unit.config.effects.support import problems

Patch = pytest.MonkeyPatch


def children(config: Config) -> dict[str, ChildSpec]:
    """What the launcher would start, by member id."""
    everything = {"trainer": 1, "reward": 1, "rollout": services_of(config)["rollout"], "reference": 1, "critic": 1}
    fleet = LocalFleet(config, config.run_folder, counts=everything)
    return {one.member_id: fleet._children.spec(one) for one in fleet._planned}


@pytest.mark.parametrize("key", [
    "argosy.services.rollout.python", "argosy.services.reward.python", "argosy.services.reference.python",
    "argosy.services.trainer.python", "argosy.services.critic.python",
])  # fmt: skip
def test_python(job: Config, key: str) -> None:
    """That service alone is started with it; one that isn't there is refused before."""
    role = key.split(".")[2]
    changed = children(job.with_values({key: "/opt/engines/bin/python"}))
    assert {name for name, child in children(job).items() if child.argv[0] != sys.executable} == set()
    assert {name: child.argv[0] for name, child in changed.items() if child.argv[0] != sys.executable} == {
        f"{role}-0": "/opt/engines/bin/python"
    }
    found = "\n".join(find_problems(job.with_values({key: "/opt/engines/bin/python"})))
    assert f"{key}: no such interpreter: /opt/engines/bin/python" in found
    assert f"{key}: got" in problems(job.with_values({key: sys.executable, "argosy.placement": "inprocess"}))


@pytest.mark.parametrize("key", [
    "argosy.services.rollout.env", "argosy.services.reward.env", "argosy.services.reference.env",
    "argosy.services.trainer.env", "argosy.services.critic.env",
])  # fmt: skip
def test_env(job: Config, key: str) -> None:
    """That service alone gets the variables."""
    role = key.split(".")[2]
    changed = children(job.with_values({key: {"VLLM_CPU_KVCACHE_SPACE": "1"}}))
    assert {name: dict(child.env) for name, child in changed.items() if child.env} == {
        f"{role}-0": {"VLLM_CPU_KVCACHE_SPACE": "1"}
    }
    assert not any(child.env for child in children(job).values())
    assert f"{key}.SPACE: wants text" in refusal(f"{key}={{SPACE: 1}}")
    assert load([f"{key}.SPACE=1"]).argosy.services == load([f'{key}={{SPACE: "1"}}']).argosy.services
    assert "no name of an environment variable" in problems(job.with_values({key: {"A=B": "x"}}))
    assert "at most 64" in problems(job.with_values({key: {f"V{number}": "x" for number in range(65)}}))


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(overrides)
    return caught.value.message


def test_secrets_are_never_written(job: Config, tmp_path: Path) -> None:
    """By name or by form; the process gets them, and a file that hides them can't be taken for the truth."""
    env = {"HF_TOKEN": "hf_abcdef", "MY_PROXY": "http://me:word@proxy:1", "OMP_NUM_THREADS": "2"}
    config = job.with_values({
        "argosy.services.rollout.env": env, "argosy.pools": {"a": {"env": {"API_KEY": "sk-123"}}}
    })  # fmt: skip
    config.save(tmp_path / "config.yaml")
    for text in ((tmp_path / "config.yaml").read_text(), repr(plan_members(config, {"rollout": 1}))):
        assert not any(secret in text for secret in ("hf_abcdef", "me:word", "sk-123"))
    written = load_resolved(tmp_path / "config.yaml")
    assert written.argosy.services.rollout.env == {"HF_TOKEN": HIDDEN, "MY_PROXY": HIDDEN, "OMP_NUM_THREADS": "2"}
    assert "argosy.services.rollout.env.HF_TOKEN: is (hidden)" in problems(written)
    assert "argosy.pools.a.env.API_KEY: is (hidden)" in problems(written)
    assert dict(children(config)["rollout-a-0"].env) == {**env, "API_KEY": "sk-123"}


def test_pools(job: Config) -> None:
    """How many rollout servers start, each with what its pool says; one server without pools."""
    config = job.with_values({
        "argosy.pools": {
            "fast": {"count": 2, "threads": 3, "service": {"slot_count": 5}},
            "exact": {"dtype": "bfloat16", "python": "/opt/python", "rollout": {"max_model_len": 99}},
        }
    })  # fmt: skip
    assert [name for name in children(job) if name.startswith("rollout")] == ["rollout-0"]
    found = {name: child for name, child in children(config).items() if name.startswith("rollout")}
    assert list(found) == ["rollout-fast-0", "rollout-fast-1", "rollout-exact-0"]
    assert found["rollout-exact-0"].argv[0] == "/opt/python"
    assert list(found["rollout-exact-0"].argv[-2:]) == ["--pool", "exact"]
    rollout = Service("rollout", "", build=lambda _: None, add_to_server=lambda *_: [])
    fast, exact = (_join_pool(rollout, config, argparse.Namespace(pool=name)) for name in ("fast", "exact"))
    assert (fast.argosy.threads_of("rollout"), fast.argosy.rollout.slot_count, fast.argosy.rollout.dtype) == (
        3, 5, "float32",
    )  # fmt: skip
    assert (exact.argosy.rollout.dtype, exact.actor_rollout_ref.rollout.max_model_len) == ("bfloat16", 99)
    assert config.published_dtype == "float32", "wide enough for all"
    coarse = config.with_values({"argosy.pools": {"a": {"dtype": "bfloat16"}, "b": {"dtype": "bfloat16"}}})
    assert options_from(coarse).publish_dtype == "bfloat16"
    with pytest.raises(ConfigError, match="fast, exact"):
        choose_pool(config, None)


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ({"a": {"cuont": 2}}, "argosy.pools.a.cuont: no such key. Did you mean argosy.pools.a.count?"),
        ({"a": {"xyz": 1}}, "argosy.pools.a.xyz: no such key. The keys here are count, "),
        ({"a": {"count": 0}}, "argosy.pools.a.count: got 0"),
        ({"A b": {}}, "argosy.pools: 'A b' is no name"),
        ({"a": {"engine": "vlm"}}, "argosy.pools.a: actor_rollout_ref.rollout.name: got 'vlm'"),
        ({"a": {"rollout": {"temperature": 0.5}}}, "argosy.pools.a.rollout.temperature: how tokens are drawn"),
        ({"a": {"rollout": {"no_such": 1}}}, "argosy.pools.a.rollout.no_such"),
        ({"a": {"service": {"slot_count": 0}}}, "argosy.pools.a: argosy.rollout.slot_count: got 0"),
        ({"a": {"remote": True}}, "argosy.pools.a.remote: got true without argosy.membership.endpoints"),
        ({"a": {"count": 2}, "b": {}}, "argosy.pools: 3 rollout servers with argosy.deterministic=true"),
    ],
)
def test_pools_that_make_no_sense(job: Config, pools: dict[str, object], message: str) -> None:
    assert message in problems(job.with_values({"argosy.pools": pools, "argosy.deterministic": True}))


def test_remote_pools_are_waited_for_not_started(job: Config) -> None:
    config = job.with_values({
        "argosy.pools": {"here": {}, "there": {"remote": True, "count": 2}},
        "argosy.membership.endpoints": ["etcd:2379"], "argosy.membership.prefix": "/mine",
    })  # fmt: skip
    assert [name for name in children(config) if name.startswith("rollout")] == ["rollout-here-0"]
    assert remote_counts(config) == {("rollout", "there"): 2}
    assert problems(config) == ""
    assert "argosy.pools.there.remote" in problems(config.with_values({"argosy.colocated": True}))


async def test_colocated(job: Config, monkeypatch: Patch) -> None:
    """Rollout sleeps from the end of generation to the next sync, which finds the trainer out of the way, as every
    generation does (those of validation too); in a split placement nobody moves."""
    changed = job.with_values({"argosy.colocated": True, "trainer.default_local_dir": f"{job.run_folder}-2"})
    assert (await run_recorded(job, monkeypatch)).turns == []
    turns = (await run_recorded(changed, monkeypatch)).turns
    assert turns == ["offload", *["offload", "sleep 1", "update", "offload", "wake"] * 2]


async def test_sleep_level(job: Config, monkeypatch: Patch) -> None:
    changed = job.with_values({"argosy.colocated": True, "argosy.sleep_level": 2})
    assert (await run_recorded(changed, monkeypatch)).turns.count("sleep 2") == 2
    assert "argosy.sleep_level: got 3" in problems(changed.with_values({"argosy.sleep_level": 3}))
    sglang = changed.with_values({"actor_rollout_ref.rollout.name": "sglang"})
    assert "argosy.sleep_level: got 2 with argosy.colocated=true" in problems(sglang)
