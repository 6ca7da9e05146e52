"""`reward_model.*` and its newer spelling `reward.*`: the overlong penalty of a response of 90 tokens."""

from __future__ import annotations

import pytest

from argosy.config import Config
from argosy.config.load import load
from argosy.controller.stages.advantage import build_batch
from argosy.controller.stages.shaping import reward_of, shape_rewards
from argosy.reward.build import reward_options
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.records import Completion, FinishReason, Prompt, Scored, VersionRun

BASE = (
    "reward_model.reward_manager=dapo",
    "reward_model.reward_kwargs.overlong_buffer_cfg.enable=true",
    "reward_model.reward_kwargs.overlong_buffer_cfg.len=20",
    "data.max_response_length=100",
)


def config(*overrides: str, without: str = "nothing") -> Config:
    return load([*(text for text in BASE if without not in text), *overrides])


def penalty(*overrides: str, without: str = "nothing") -> float:
    return reward_of(config(*overrides, without=without), Scored(1.0), 90) - 1.0


@pytest.mark.parametrize("key", ["reward_model.reward_manager", "reward.reward_manager.name"])
def test_reward_manager(key: str) -> None:
    assert penalty(f"{key}=dapo", without="reward_manager") == -0.5
    assert penalty(without="reward_manager") == 0.0
    function = reward_options(config(f"{key}=batch", "custom_reward_function.path=f.py", without="reward_model")).custom
    assert function is not None
    assert function.batch


@pytest.mark.parametrize(
    "key",
    ["reward_model.reward_kwargs.overlong_buffer_cfg.enable", "reward.reward_kwargs.overlong_buffer_cfg.enable"],
)
def test_enable(key: str) -> None:
    assert penalty(f"+{key}=True", without="enable") == -0.5
    assert penalty(without="enable") == 0.0


@pytest.mark.parametrize(
    "key", ["reward_model.reward_kwargs.overlong_buffer_cfg.len", "reward.reward_kwargs.overlong_buffer_cfg.len"]
)
def test_len(key: str) -> None:
    assert penalty(f"+{key}=40") == -0.75


@pytest.mark.parametrize(
    "key",
    [
        "reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor",
        "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor",
    ],
)
def test_penalty_factor(key: str) -> None:
    assert penalty(f"+{key}=3") == -1.5


@pytest.mark.parametrize("key", ["reward_model.reward_kwargs.max_resp_len", "reward.reward_kwargs.max_resp_len"])
def test_max_resp_len(key: str) -> None:
    assert penalty(f"+{key}=95") == -0.75


@pytest.mark.parametrize(
    "key", ["reward_model.reward_kwargs.overlong_buffer_cfg.log", "reward.reward_kwargs.overlong_buffer_cfg.log"]
)
def test_log(key: str) -> None:
    sample, ids = SampleId(0, 0, 0), tuple(range(90))
    run = VersionRun(PolicyVersion("l0", 0, "00"), 90)
    completion = Completion(sample, ids, tuple(-0.1 for _ in ids), (run,), FinishReason.STOP)
    batch = build_batch([Prompt(GroupId(0, 0), (3,), "s", "")], {sample: completion}, {sample: Scored(1.0)})
    for overrides, logged in (((), False), ((f"+{key}=true",), True)):
        shaped, metrics = shape_rewards(config(*overrides), batch)
        assert shaped.ragged("token_rewards").segment_sum().tolist() == [0.5]
        assert metrics["critic/raw_score/mean"] == 1.0
        assert (metrics.get("reward/overlong_reward/mean") == -0.5) is logged
