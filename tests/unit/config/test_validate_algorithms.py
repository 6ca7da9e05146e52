"""Estimators, dynamic sampling, rollout correction and the overlong penalty: nonsense is refused with the numbers."""

from __future__ import annotations

from typing import Any

import pytest

from argosy.algorithms.catalog import ADVANTAGES
from argosy.algorithms.kl_reward import ERROR_LIMIT
from argosy.config import Config, find_problems, validate_row_count
from argosy.config.validate.algorithms import LARGEST_KL_ERROR
from argosy.types.errors import ConfigError

ROLLOUT = "actor_rollout_ref.rollout"
FILTER, CORRECTION = "algorithm.filter_groups", "algorithm.rollout_correction"
KWARGS = "reward_model.reward_kwargs"
BUFFER = f"{KWARGS}.overlong_buffer_cfg"
DYNAMIC = {f"{FILTER}.enable": True, f"{FILTER}.metric": "acc"}
OVERLONG = {"reward_model.reward_manager": "dapo", f"{BUFFER}.enable": True, f"{BUFFER}.len": 64}
BYPASS = {f"{CORRECTION}.bypass_mode": True}
GDPO = {"algorithm.adv_estimator": "gdpo", "algorithm.gdpo_reward_keys": ["a", "b"]}
ADAPTIVE = {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.type": "adaptive"}


def found(config: Config, values: dict[str, Any]) -> str:
    return "\n".join(find_problems(config.with_values(values), files=False))


@pytest.mark.parametrize("estimator", sorted(name for name, info in ADVANTAGES.items() if "group" in info.needs))
def test_b1_a_group_estimator_wants_a_group(valid: Config, estimator: str) -> None:
    values: dict[str, Any] = {"algorithm.adv_estimator": estimator}
    values |= {"algorithm.gdpo_reward_keys": ["acc"]} if estimator == "gdpo" else {}
    assert found(valid, values) == ""
    one = found(valid, values | {f"{ROLLOUT}.n": 1})
    assert one.startswith(f"{ROLLOUT}.n: got 1 with algorithm.adv_estimator={estimator}, which compares")
    greedy = found(valid, values | {f"{ROLLOUT}.do_sample": False})
    assert greedy.startswith(f"{ROLLOUT}.do_sample: got false with rollout.n=4: greedy responses")


@pytest.mark.parametrize(
    "values",
    [
        {"algorithm.adv_estimator": "remax", f"{ROLLOUT}.n": 1},
        GDPO | {"algorithm.gdpo_reward_weights": [1.0, 0.0]},
        ADAPTIVE | {"algorithm.kl_ctrl.horizon": 7},
        {"algorithm.kl_ctrl.horizon": 1},
        DYNAMIC | {"data.gen_batch_size": 24, f"{FILTER}.max_num_gen_batches": 10},
        DYNAMIC | {f"{FILTER}.max_num_gen_batches": -1},
        {"data.gen_batch_size": 8},
        {f"{CORRECTION}.rollout_is": "token", f"{CORRECTION}.rollout_is_threshold": "0.5_5.0"},
        {f"{CORRECTION}.rollout_rs": "token_k1,seq_mean_k3", f"{CORRECTION}.rollout_rs_threshold": "2.0,0.01"},
        BYPASS,
        BYPASS | {"actor_rollout_ref.actor.policy_loss.loss_mode": "bypass_mode"},
        BYPASS | {f"{CORRECTION}.loss_type": "reinforce", f"{CORRECTION}.rollout_is": "sequence"},
        OVERLONG,
        OVERLONG | {f"{KWARGS}.max_resp_len": 500},
        {"reward_model.reward_manager": "dapo"},
    ],
)
def test_sense_is_accepted(valid: Config, values: dict[str, Any]) -> None:
    assert found(valid, values) == ""


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"algorithm.adv_estimator": "remax", f"{ROLLOUT}.n": 1, f"{ROLLOUT}.do_sample": False},
            "the greedy answer is the baseline",
        ),
        (
            {"algorithm.adv_estimator": "gae", f"{ROLLOUT}.do_sample": False},
            f"{ROLLOUT}.do_sample: got false with rollout.n=4",
        ),
        ({"algorithm.adv_estimator": "gdpo"}, "algorithm.gdpo_reward_keys: got [] with algorithm.adv_estimator=gdpo"),
        (GDPO | {"algorithm.gdpo_reward_keys": ["a", "a"]}, "got ['a', 'a'], where a name is given twice"),
        (
            GDPO | {"algorithm.gdpo_reward_weights": [1.0]},
            "got 1 weights [1.0] for 2 gdpo_reward_keys ['a', 'b']",
        ),
        (GDPO | {"algorithm.gdpo_reward_weights": [0.0, 0.0]}, "got [0.0, 0.0]; wants finite numbers that are not all"),
        (GDPO | {"algorithm.gdpo_reward_weights": [1.0, float("nan")]}, "got [1.0, nan]; wants finite"),
        (
            GDPO | {"algorithm.adv_estimator": "grpo"},
            "gdpo_reward_keys: got ['a', 'b'] with algorithm.adv_estimator=grpo",
        ),
        ({"algorithm.gdpo_reward_weights": [1.0]}, "gdpo_reward_weights: got [1.0] with algorithm.adv_estimator=grpo"),
        # 8 prompts × 4 responses: 0.2 × 32 = 6.4
        (ADAPTIVE | {"algorithm.kl_ctrl.horizon": 6}, "got 6 for batches of 32 sequences (train_batch_size 8 × "),
        ({"algorithm.gamma": 1.5}, "algorithm.gamma: got 1.5, wants a value ≥ 0 and ≤ 1"),
        ({"algorithm.lam": -0.1}, "algorithm.lam: got -0.1"),
        # dynamic sampling
        ({"data.gen_batch_size": 24}, "data.gen_batch_size: got 24 for data.train_batch_size=8"),
        (
            DYNAMIC | {f"{ROLLOUT}.n": 1, "algorithm.adv_estimator": "reinforce_plus_plus"},
            f"{FILTER}.enable: got true with {ROLLOUT}.n=1",
        ),
        (
            DYNAMIC | {f"{ROLLOUT}.do_sample": False, "algorithm.adv_estimator": "reinforce_plus_plus"},
            f"{ROLLOUT}.do_sample: got false with rollout.n=4: greedy responses of one prompt are all the same",
        ),
        ({f"{FILTER}.enable": True}, f"{FILTER}.metric: must say what has to differ"),
        (
            DYNAMIC | {f"{FILTER}.metric": "seq_final_reward", "algorithm.use_kl_in_reward": True},
            "got seq_final_reward with algorithm.use_kl_in_reward=true",
        ),
        (
            DYNAMIC | {f"{FILTER}.max_num_gen_batches": 3, "data.gen_batch_size": 2},
            f"{FILTER}.max_num_gen_batches: got 3 of data.gen_batch_size=2 prompts: even if no group is dropped, 6 are "
            "fewer than data.train_batch_size=8",
        ),
        (DYNAMIC | {f"{FILTER}.max_num_gen_batches": -2}, "got -2, wants a value ≥ 0 or -1"),
        # rollout correction
        ({f"{CORRECTION}.rollout_is": "geometric"}, f"{CORRECTION}.rollout_is: got 'geometric'"),
        (
            {f"{CORRECTION}.rollout_is": "token", f"{CORRECTION}.rollout_is_threshold": "-2"},
            f"{CORRECTION}.rollout_is_threshold: got '-2', wants bounds above 0",
        ),
        ({f"{CORRECTION}.rollout_rs": "token_k1"}, f"{CORRECTION}.rollout_rs_threshold: got 0 thresholds"),
        ({f"{CORRECTION}.rollout_rs_threshold": "2.0"}, f"{CORRECTION}.rollout_rs=null rejects nothing"),
        ({f"{CORRECTION}.rollout_is_batch_normalize": True}, f"{CORRECTION}.rollout_is=null makes no weights"),
        ({f"{CORRECTION}.loss_type": "reinforce"}, "got reinforce, which is a loss of bypass mode"),
        ({f"{CORRECTION}.loss_type": "dpo"}, "got 'dpo', wants ppo_clip or reinforce"),
        (
            BYPASS | {f"{CORRECTION}.rollout_is": "token"},
            f"{CORRECTION}.rollout_is: got token with bypass_mode=true and loss_type=ppo_clip",
        ),
        (BYPASS | {"algorithm.adv_estimator": "optimal_token_baseline"}, "needs the pass over all tokens"),
        (
            BYPASS | {"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo"},
            f"loss_mode: got gspo with {CORRECTION}.bypass_mode=true",
        ),
        (
            {"actor_rollout_ref.actor.policy_loss.loss_mode": "bypass_mode"},
            f"got bypass_mode with {CORRECTION}.bypass_mode=false",
        ),
        # reward manager
        (
            {"reward_model.reward_manager": "prime"},
            "reward_model.reward_manager: got 'prime', wants naive, batch or dapo",
        ),
        (OVERLONG | {"reward_model.reward_manager": "naive"}, "got true with reward_model.reward_manager=naive"),
        (OVERLONG | {f"{BUFFER}.len": None}, f"{BUFFER}.len: must be given"),
        (OVERLONG | {f"{BUFFER}.len": 0}, f"{BUFFER}.len: got 0, wants a value ≥ 1"),
        (OVERLONG | {f"{BUFFER}.penalty_factor": -1.0}, f"{BUFFER}.penalty_factor: got -1"),
        (OVERLONG | {f"{BUFFER}.len": 513}, f"{BUFFER}.len: got 513, more than max_resp_len=512"),
        (
            OVERLONG | {f"{KWARGS}.max_resp_len": 1024},
            f"got 1024 with {BUFFER}.len=64: the penalty begins beyond 960 tokens, and data.max_response_length=512",
        ),
        (
            OVERLONG | {"algorithm.adv_estimator": "gdpo", "algorithm.gdpo_reward_keys": ["acc"]},
            "got true with algorithm.adv_estimator=gdpo, which sees the named parts",
        ),
    ],
)
def test_nonsense_is_refused_with_the_numbers(valid: Config, values: dict[str, Any], expected: str) -> None:
    problems = found(valid, values)
    assert expected in problems
    assert "\n" not in problems


def test_c10_rows_are_counted_against_the_generation_batch(valid: Config) -> None:
    config = valid.with_values(DYNAMIC | {"data.gen_batch_size": 24})
    validate_row_count(config, 24)
    with pytest.raises(ConfigError, match=r"23 rows, fewer than one batch of data.gen_batch_size=24"):
        validate_row_count(config, 23)


def test_the_bound_on_the_horizon_is_the_controllers() -> None:
    assert LARGEST_KL_ERROR == ERROR_LIMIT
