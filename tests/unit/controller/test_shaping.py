from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from argosy.config import Config
from argosy.controller.stages.advantage import add_advantages, add_baselines, add_reward_parts, build_batch
from argosy.controller.stages.correction import correct_rollout, take_rollout_log_probs
from argosy.controller.stages.reference import needs_old_log_probs, policy_columns
from argosy.controller.stages.shaping import reward_of, shape_rewards
from argosy.types.batch import TrajectoryBatch
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import Abstained, Completion, Failed, FinishReason, Outcome, Prompt, Scored, VersionRun

DAPO = Config().with_values({
    "reward_model.reward_manager": "dapo", "reward_model.reward_kwargs.overlong_buffer_cfg.enable": True,
    "reward_model.reward_kwargs.overlong_buffer_cfg.len": 4, "data.max_response_length": 10,
    "reward_model.reward_kwargs.overlong_buffer_cfg.log": True,
})  # fmt: skip
CORRECTION = "algorithm.rollout_correction"


def batch_of(lengths: list[int], outcomes: list[Outcome]) -> tuple[TrajectoryBatch, Mapping[SampleId, Outcome]]:
    """One group."""
    samples = [SampleId(0, 0, k) for k in range(len(lengths))]
    completions = {}
    for sample, length in zip(samples, lengths, strict=True):
        runs = (VersionRun(PolicyVersion("l0", 0, "00"), length),) if length else ()
        ids = tuple(range(length))
        completions[sample] = Completion(sample, ids, tuple(-0.5 for _ in ids), runs, FinishReason.STOP)
    named = dict(zip(samples, outcomes, strict=True))
    return build_batch([Prompt(GroupId(0, 0), (1, 2), "s", "1")], completions, named), named


def test_the_penalty_lands_on_the_last_token_of_judged_answers() -> None:
    lengths = [6, 8, 10, 10, 0, 10, 9]
    dense = tuple(0.1 for _ in range(9))
    outcomes: list[Outcome] = [
        Scored(1.0), Scored(1.0), Scored(-1.0), Abstained(), Scored(1.0), Failed("timeout"), Scored(0.9, {}, dense),
    ]  # fmt: skip
    batch, _ = batch_of(lengths, outcomes)
    shaped, metrics = shape_rewards(DAPO, batch)
    rewards = [row.tolist() for row in shaped.ragged("token_rewards")]
    assert [sum(row) for row in rewards] == pytest.approx([1.0, 0.5, -2.0, 0.0, 0.0, 0.0, 0.9 - 0.75], abs=1e-6)
    assert rewards[1] == [0.0] * 7 + [0.5]
    assert rewards[6] == pytest.approx([0.1] * 8 + [0.1 - 0.75])
    assert np.array_equal(shaped.scalars("score"), batch.scalars("score"), equal_nan=True)
    assert shaped.scalars("shaped_score").tolist()[:3] == [1.0, 0.5, -2.0]
    assert metrics["reward/overlong_reward/mean"] == pytest.approx((0 - 0.5 - 1 - 0.75) / 4)
    assert metrics["reward/overlong/mean"] == 0.75
    for outcome, length, row in zip(outcomes, lengths, rewards, strict=True):
        whole = reward_of(DAPO, outcome, length)
        assert (sum(row) == pytest.approx(whole, abs=1e-6)) if isinstance(outcome, Scored) else math.isnan(whole)


def test_without_the_penalty_nothing_moves() -> None:
    batch, _ = batch_of([10, 10], [Scored(1.0), Scored(0.0)])
    naive = DAPO.with_values({"reward_model.reward_manager": "naive"})
    off = DAPO.with_values({"reward_model.reward_kwargs.overlong_buffer_cfg.enable": False})
    for config in (naive, off):
        assert shape_rewards(config, batch) == (batch, {})
    nobody, _ = batch_of([10], [Failed("timeout")])
    _, metrics = shape_rewards(DAPO, nobody)
    assert metrics == {"reward/overlong_reward/mean": 0.0, "reward/overlong/mean": 0.0}


def test_an_unjudged_baseline_trains_nobody() -> None:
    config = Config().with_values({"algorithm.adv_estimator": "remax"})
    batch, _ = batch_of([2, 2], [Scored(1.0), Scored(0.0)])
    for baseline, wanted in ((0.25, [0.75, -0.25]), (math.nan, [0.0, 0.0])):
        found, _ = add_advantages(config, add_baselines(batch, {GroupId(0, 0): baseline}))
        assert [float(row[0]) for row in found.ragged("advantages")] == wanted


def test_parts_of_the_reward() -> None:
    config = Config().with_values({"algorithm.gdpo_reward_keys": ["acc", "score", "text", "gone"]})
    outcomes: list[Outcome] = [Scored(0.5, {"acc": True, "text": "x"}), Failed("timeout"), Scored(2.0, {"acc": 0.25})]
    batch, named = batch_of([1, 1, 1], outcomes)
    batch = add_reward_parts(config, batch, named)
    assert [name for name in batch.columns if name.startswith("reward_part/")] == [
        "reward_part/acc", "reward_part/score"
    ]  # fmt: skip
    assert batch.scalars("reward_part/acc").tolist()[::2] == [1.0, 0.25]
    assert math.isnan(batch.scalars("reward_part/acc")[1])
    assert batch.scalars("reward_part/score").tolist()[::2] == [0.5, 2.0]


def with_old(batch: TrajectoryBatch, value: float) -> TrajectoryBatch:
    ids = batch.ragged("response_ids")
    return batch.with_column("old_log_probs", Ragged(np.full(len(ids.values), value), ids.offsets))


def test_correction_of_a_batch() -> None:
    batch, _ = batch_of([2, 4], [Scored(1.0), Scored(0.0)])
    config = Config().with_values({
        f"{CORRECTION}.rollout_is": "sequence", f"{CORRECTION}.rollout_rs": "seq_sum_k1",
        f"{CORRECTION}.rollout_rs_threshold": "3.0",
    })  # fmt: skip
    corrected, metrics = correct_rollout(config, with_old(batch, -0.9))
    assert [row.tolist() for row in corrected.ragged("response_mask")] == [[1, 1], [0] * 4]  # log 3 is 1.1
    weights = [row[0] for row in corrected.ragged("rollout_is_weights")]
    assert weights == pytest.approx([math.exp(-0.8), math.exp(-1.6)])
    assert metrics["rollout_corr/rollout_rs_seq_sum_k1_seq_masked_fraction"] == 0.5
    assert metrics["rollout_corr/ppl_ratio"] == pytest.approx(math.exp(0.4))


def test_without_a_rule_only_metrics_come_out() -> None:
    batch, _ = batch_of([2], [Scored(1.0)])
    corrected, metrics = correct_rollout(Config(), with_old(batch, -0.9))
    assert not corrected.has("rollout_is_weights")
    assert metrics["rollout_corr/kl"] == pytest.approx(0.4)
    assert correct_rollout(Config(), batch) == (batch, {})


def test_bypass_takes_the_engines_log_probs_and_leaves_the_rest_to_the_loss() -> None:
    batch, _ = batch_of([2], [Scored(1.0)])
    config = Config().with_values({
        f"{CORRECTION}.bypass_mode": True, f"{CORRECTION}.rollout_rs": "token_k1",
        f"{CORRECTION}.rollout_rs_threshold": "2.0",
    })  # fmt: skip
    taken = take_rollout_log_probs(config, batch)
    assert taken.ragged("old_log_probs").values.tolist() == batch.ragged("rollout_log_probs").values.tolist()
    assert correct_rollout(config, taken) == (taken, {})
    assert take_rollout_log_probs(Config(), batch) is batch


def test_who_needs_old_log_probs() -> None:
    one = Config().with_values({"data.train_batch_size": 8, "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
                                "algorithm.adv_estimator": "grpo"})  # fmt: skip
    assert policy_columns(one) == []
    for key, value in (("rollout_is", "token"), ("rollout_rs", "token_k1")):
        assert policy_columns(one.with_values({f"{CORRECTION}.{key}": value})) == ["log_probs"]
    otb = one.with_values({"algorithm.adv_estimator": "optimal_token_baseline"})
    assert policy_columns(otb) == ["log_probs", "sum_pi_squared"]
    bypass = {f"{CORRECTION}.bypass_mode": True, "actor_rollout_ref.actor.ppo_epochs": 2}
    assert not needs_old_log_probs(one.with_values(bypass))
