"""`actor_rollout_ref.actor.policy_loss.*` and sapo's keys: which loss, and the numbers of each."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from argosy.algorithms.losses import WHOLE_BATCH, MiniBatch
from argosy.config import Config
from argosy.controller.stages.update import loss_config
from argosy.trainer.objective import check_loss
from argosy.types.errors import InvalidInputError
from argosy.types.ragged import Ragged
from unit.config.effects.support import problems
from unit.config.effects.test_actor import PLAIN, loss


def with_mode(mode: str) -> Config:
    return PLAIN.with_values({"actor_rollout_ref.actor.policy_loss.loss_mode": mode})


def test_loss_mode() -> None:
    """It chooses the loss; an unknown name is refused at the start and by the trainer."""
    found = {}
    for mode in ("vanilla", "cispo", "dppo_tv", "kl_cov", "geo_mean"):
        changed = PLAIN.with_values({"actor_rollout_ref.actor.policy_loss.loss_mode": mode})
        check_loss(loss_config(changed))
        found[mode] = loss(changed, ratios=(0.9, 0.5), advantage=-1.0)
    near, far = np.log([0.9, 0.5])
    assert found == {
        "vanilla": 0.85,
        "cispo": round((0.9 * near + 0.8 * far) / 2, 4),
        "dppo_tv": round(0.9 * near / 2, 4),
        "kl_cov": round((0.9 + 0.5 - 0.1 * (near + far)) / 2, 4),
        "geo_mean": round(np.exp((near - 0.2) / 2), 4),
    }
    unknown = PLAIN.with_values({"actor_rollout_ref.actor.policy_loss.loss_mode": "gspoo"})
    assert "policy_loss.loss_mode: got 'gspoo', wants vanilla, gspo, sapo" in problems(unknown)
    with pytest.raises(InvalidInputError, match="gspoo"):
        check_loss(dataclasses.replace(loss_config(PLAIN), loss_mode="gspoo"))


def chosen(config: Config) -> list[int]:
    """Tokens that the loss marks in a mini-batch of two sequences with covariances 4, 1.1, 0, 0.9 and 4.4."""
    mask = Ragged.from_rows([[1, 1, 1], [1, 1]], np.int8)
    log_probs = np.array([-2.0, -1.1, 0.0, 0.9, 2.2]) - 3.0
    keys = np.array([5, 3, 9, 0, 1], np.uint64)
    batch = MiniBatch(log_probs, log_probs, np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), mask, keys)
    settings = loss_config(config)
    return [int(place) for place in np.flatnonzero(WHOLE_BATCH[settings.loss_mode](batch, settings))]


def test_clip_cov_ratio() -> None:
    plain = with_mode("clip_cov")
    changed = plain.with_values({"actor_rollout_ref.actor.policy_loss.clip_cov_ratio": 0.5})
    assert [chosen(config) for config in (plain, changed)] == [[4], [1, 4]]


def test_clip_cov_lb() -> None:
    plain = with_mode("clip_cov")
    changed = plain.with_values({"actor_rollout_ref.actor.policy_loss.clip_cov_lb": 0.5})
    assert [chosen(config) for config in (plain, changed)] == [[4], [3]]
    turned = plain.with_values({"actor_rollout_ref.actor.policy_loss.clip_cov_lb": 6.0})
    assert "clip_cov_lb: got 6, not below clip_cov_ub=5" in problems(turned.with_values({ESTIMATOR: "grpo"}))


ESTIMATOR = "algorithm.adv_estimator"


def test_clip_cov_ub() -> None:
    plain = with_mode("clip_cov")
    changed = plain.with_values({"actor_rollout_ref.actor.policy_loss.clip_cov_ub": 4.2})
    assert [chosen(config) for config in (plain, changed)] == [[4], [1]]


def test_kl_cov_ratio() -> None:
    plain = with_mode("kl_cov")
    changed = plain.with_values({"actor_rollout_ref.actor.policy_loss.kl_cov_ratio": 0.5})
    assert [chosen(config) for config in (plain, changed)] == [[4], [0, 4]]


def test_ppo_kl_coef() -> None:
    plain = with_mode("kl_cov")
    changed = plain.with_values({"actor_rollout_ref.actor.policy_loss.ppo_kl_coef": 1.0})
    expected = [round(-0.5 + coef * np.log(2), 4) for coef in (0.1, 1.0)]
    assert [loss(config, ratios=(0.5,)) for config in (plain, changed)] == expected


def test_dro_beta() -> None:
    plain = with_mode("dro")
    changed = plain.with_values({"actor_rollout_ref.actor.policy_loss.dro_beta": 1.0})
    assert [loss(config, ratios=(float(np.e),)) for config in (plain, changed)] == [-0.975, -0.5]


def gate(tau: float) -> float:
    """sapo's at a ratio of 3."""
    return round(float(4 / tau / (1 + np.exp(-2 * tau))), 4)


def test_tau_pos() -> None:
    plain = with_mode("sapo")
    changed = plain.with_values({"actor_rollout_ref.actor.tau_pos": 2.0})
    assert [loss(config, ratios=(3.0,)) for config in (plain, changed)] == [-gate(1.0), -gate(2.0)]
    assert loss(changed, ratios=(3.0,), advantage=-1.0) == gate(1.05)


def test_tau_neg() -> None:
    plain = with_mode("sapo")
    changed = plain.with_values({"actor_rollout_ref.actor.tau_neg": 2.0})
    assert [loss(config, ratios=(3.0,), advantage=-1.0) for config in (plain, changed)] == [gate(1.05), gate(2.0)]
    assert loss(changed, ratios=(3.0,)) == -gate(1.0)


def test_bypass_needs_the_engines_log_probs() -> None:
    alone = with_mode("bypass_mode").with_values({ESTIMATOR: "grpo"})
    assert "loss_mode: got bypass_mode with algorithm.rollout_correction.bypass_mode=false" in problems(alone)
    assert "got bypass_mode" not in problems(alone.with_values({"algorithm.rollout_correction.bypass_mode": True}))


def test_bypass_mode_brings_its_loss_and_its_rules() -> None:
    changed = PLAIN.with_values(
        {
            "algorithm.rollout_correction.bypass_mode": True,
            "algorithm.rollout_correction.loss_type": "reinforce",
            "algorithm.rollout_correction.rollout_is": "sequence",
        }
    )
    found = loss_config(changed)
    check_loss(found)
    assert found.loss_mode == "bypass_mode"
    assert found.options == {
        "loss_type": "reinforce",
        "rollout_is": "sequence",
        "rollout_is_threshold": "2.0",
        "rollout_is_batch_normalize": False,
    }


@pytest.mark.parametrize("mode", ["gspo", "sapo", "geo_mean"])
def test_sequence_losses_average_sequences_unless_told_otherwise(mode: str) -> None:
    plain = with_mode(mode)
    assert loss_config(plain).loss_agg_mode == "seq-mean-token-mean"
    told = plain.with_values({"actor_rollout_ref.actor.loss_agg_mode": "token-mean"})
    assert loss_config(told).loss_agg_mode == "token-mean"
