from __future__ import annotations

import math

import numpy as np
import pytest

from argosy.algorithms.kl_reward import KLController
from argosy.config import Config
from argosy.controller.rewards.failures import RewardsUnusableError, check_failures
from argosy.controller.stages.advantage import add_advantages, build_batch, subtract_kl
from argosy.controller.stages.prompt import make_requests, training_params, validation_params
from argosy.controller.stages.reference import needs_old_log_probs
from argosy.controller.stages.rollout import assign_groups
from argosy.controller.stages.running import continue_from
from argosy.controller.stages.update import update_config
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import (
    Abstained,
    Completion,
    Failed,
    FinishReason,
    Outcome,
    Prompt,
    SamplingParams,
    Scored,
    VersionRun,
)

VERSION = PolicyVersion("l0", 0, "00")
GRPO = Config().with_values({"algorithm.adv_estimator": "grpo"})


def prompt(position: int, length: int = 3) -> Prompt:
    return Prompt(GroupId(0, position), tuple(range(length)), "s", "1")


def completion(sample: SampleId, length: int) -> Completion:
    ids = tuple(range(length))
    return Completion(sample, ids, tuple(-0.1 for _ in ids), (VersionRun(VERSION, length),), FinishReason.STOP)


def test_b20_rewards_stay_with_their_samples() -> None:
    """Completions arrive in any order; each row's score, tokens and reward still belong together."""
    lengths = [9, 2, 7, 3, 8, 1]
    samples = [SampleId(0, position, k) for position in range(2) for k in range(3)]
    arrival = [4, 0, 5, 2, 1, 3]
    completions = {samples[i]: completion(samples[i], lengths[i]) for i in arrival}
    outcomes: dict[SampleId, Outcome] = {samples[i]: Scored(float(lengths[i])) for i in reversed(arrival)}
    batch = build_batch([prompt(1), prompt(0)], completions, outcomes)
    assert batch.sample_ids == samples
    assert batch.scalars("score").tolist() == lengths
    assert batch.ragged("response_ids").lengths.tolist() == lengths
    assert batch.ragged("token_rewards").segment_sum().tolist() == lengths
    assert [row[-1] for row in batch.ragged("token_rewards")] == lengths


def test_g1_unjudged_samples_are_masked_out() -> None:
    samples = [SampleId(0, 0, k) for k in range(4)]
    completions = {sample: completion(sample, 2) for sample in samples}
    outcomes: dict[SampleId, Outcome] = {
        samples[0]: Scored(1.0), samples[1]: Abstained(), samples[2]: Scored(0.0), samples[3]: Failed("timeout"),
    }  # fmt: skip
    batch, _ = add_advantages(GRPO, build_batch([prompt(0)], completions, outcomes))
    assert [row.tolist() for row in batch.ragged("response_mask")] == [[1, 1], [0, 0], [1, 1], [0, 0]]
    advantages = [float(row[0]) for row in batch.ragged("advantages")]
    assert advantages[1] == advantages[3] == 0.0
    assert advantages[0] == pytest.approx(-advantages[2])
    assert advantages[0] > 0


def test_kl_in_reward_is_subtracted_from_trained_tokens_only() -> None:
    samples = [SampleId(0, 0, 0), SampleId(0, 0, 1)]
    completions = {sample: completion(sample, 2) for sample in samples}
    batch = build_batch([prompt(0)], completions, {samples[0]: Scored(1.0), samples[1]: Abstained()})
    offsets = batch.ragged("response_ids").offsets
    batch = batch.with_column("old_log_probs", Ragged(np.array([-1.0, -2.0, -1.0, -1.0]), offsets))
    batch = batch.with_column("ref_log_probs", Ragged(np.array([-1.5, -1.0, -9.0, -9.0]), offsets))
    config = Config().with_values({"algorithm.use_kl_in_reward": True, "algorithm.kl_penalty": "kl"})
    changed, metrics = subtract_kl(config, batch, KLController(0.1))
    assert changed.ragged("token_rewards").values.tolist() == pytest.approx([-0.05, 1.0 + 0.1, 0.0, 0.0])
    assert metrics["actor/reward_kl_penalty"] == pytest.approx((0.5 - 1.0) / 2)  # of the one sequence that has a KL


def test_kl_in_reward_where_nothing_is_trained() -> None:
    """Log-probs of untrained tokens may be anything: no reward takes it over, no KL is made up, and β stays (H9)."""
    samples = [SampleId(0, 0, 0), SampleId(0, 0, 1)]
    completions = {sample: completion(sample, 2) for sample in samples}
    config = Config().with_values({"algorithm.use_kl_in_reward": True})
    for first, expected in ((Scored(1.0), [-0.0, 1.0, 0.0, 0.0]), (Abstained(), [0.0] * 4)):
        batch = build_batch([prompt(0)], completions, {samples[0]: first, samples[1]: Abstained()})
        judged = np.array([isinstance(first, Scored)] * 2 + [False] * 2)
        offsets = batch.ragged("response_ids").offsets
        batch = batch.with_column("old_log_probs", Ragged(np.where(judged, -1.0, np.nan), offsets))
        batch = batch.with_column("ref_log_probs", Ragged(np.where(judged, -1.0, -np.inf), offsets))
        controller = KLController(0.1, horizon=10)
        changed, metrics = subtract_kl(config, batch, controller)
        assert changed.ragged("token_rewards").values.tolist() == expected
        assert ("actor/reward_kl_penalty" in metrics) == isinstance(first, Scored)
        assert controller.coef == pytest.approx(0.1 * (1 - 0.2 * 1 / 10) if isinstance(first, Scored) else 0.1)


def test_d14_validation_sampling_is_its_own() -> None:
    config = Config().with_values({
        "actor_rollout_ref.rollout.n": 4, "actor_rollout_ref.rollout.temperature": 0.7,
        "data.max_response_length": 16,
    })  # fmt: skip
    train, val = training_params(config), validation_params(config)
    assert (train.temperature, val.temperature) == (0.7, 0.0)
    sampled = config.with_values({
        "actor_rollout_ref.rollout.val_kwargs.do_sample": True, "actor_rollout_ref.rollout.val_kwargs.temperature": 0.3,
        "actor_rollout_ref.rollout.val_kwargs.top_p": 0.9,
    })  # fmt: skip
    assert (validation_params(sampled).temperature, validation_params(sampled).top_p) == (0.3, 0.9)
    requests = make_requests([prompt(i) for i in range(3)], 1, val, "val")
    assert len(requests) == 3
    assert {request.purpose for request in requests} == {"val"}
    assert requests[0].key != make_requests([prompt(0)], 4, train, "train")[0].key


def test_max_tokens_is_cut_to_the_context() -> None:
    [short, long] = make_requests([prompt(0, 3), prompt(1, 30)], 1, SamplingParams(max_tokens=10), "train", 32)
    assert (short.params.max_tokens, long.params.max_tokens) == (10, 2)


def test_groups_stay_together_and_shares_are_even() -> None:
    requests = make_requests([prompt(i) for i in range(5)], 4, SamplingParams(max_tokens=4), "train")
    shares = assign_groups(requests, {"rollout-1": 1.0, "rollout-0": 1.0})
    assert sorted(len(share) for share in shares.values()) == [8, 12]
    owners = {request.sample_id.group: member for member, share in shares.items() for request in share}
    assert len(owners) == 5
    assert shares == assign_groups(list(reversed(requests)), {"rollout-0": 1.0, "rollout-1": 1.0})
    assert assign_groups(requests, {}) == {}


def test_a_lost_answer_goes_on_where_it_was() -> None:
    [request] = make_requests([prompt(0)], 1, SamplingParams(max_tokens=4), "train")
    partial = completion(request.sample_id, 2)
    assert continue_from(request, partial).generated.token_ids == partial.token_ids
    assert continue_from(request, completion(request.sample_id, 0)) is request


def test_g11_failures_are_counted_and_too_many_stop_the_run() -> None:
    samples = [SampleId(0, 0, k) for k in range(4)]
    outcomes: dict[SampleId, Outcome] = {sample: Scored(1.0) for sample in samples}
    assert check_failures(outcomes, 0.5) == {"reward/failed_fraction": 0.0}
    outcomes[samples[0]] = Failed("timeout", "10 s passed")
    assert check_failures(outcomes, 0.5) == {"reward/failed_fraction": 0.25, "reward/failed/timeout": 1.0}
    for sample in samples[:3]:
        outcomes[sample] = Failed("exception", "my_reward: ZeroDivisionError")
    with pytest.raises(RewardsUnusableError, match=r"3 of 4 samples could not be judged.*my_reward: ZeroDivisionError"):
        check_failures(outcomes, 0.5)


def test_old_log_probs_are_computed_only_when_weights_move_in_between() -> None:
    config = Config().with_values({
        "data.train_batch_size": 8, "actor_rollout_ref.actor.ppo_mini_batch_size": 8, "actor_rollout_ref.rollout.n": 4
    })  # fmt: skip
    assert not needs_old_log_probs(config)
    assert needs_old_log_probs(config.with_values({"actor_rollout_ref.actor.ppo_mini_batch_size": 4}))
    assert needs_old_log_probs(config.with_values({"actor_rollout_ref.actor.ppo_epochs": 2}))
    assert needs_old_log_probs(config.with_values({"algorithm.use_kl_in_reward": True}))
    assert update_config(config).mini_batch_size == 32


def test_advantages_are_finite_when_nothing_was_judged() -> None:
    samples = [SampleId(0, 0, k) for k in range(2)]
    completions = {sample: completion(sample, 2) for sample in samples}
    batch = build_batch([prompt(0)], completions, dict.fromkeys(samples, Failed("timeout")))
    batch, metrics = add_advantages(GRPO, batch)
    assert all(math.isfinite(value) for value in batch.ragged("advantages").values)
    assert metrics["critic/groups/unjudged_fraction"] == 1.0
