"""Mode-specific numbers: defaults, and what is refused with its name and value."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from argosy.algorithms.losses import OPTIONS, check_options, get_loss
from argosy.algorithms.losses.bypass_mode import BypassOptions
from argosy.algorithms.losses.clip_cov import ClipCovOptions
from argosy.algorithms.losses.dro import DroOptions
from argosy.algorithms.losses.kl_cov import KlCovOptions
from argosy.algorithms.losses.options import read_options
from argosy.algorithms.losses.sapo import SapoOptions
from argosy.config.schema import ActorConfig
from argosy.types.errors import InvalidInputError
from argosy.types.records import LossConfig
from support.loss_references import Token
from support.losses import CONFIGS, inputs_of, result_of


def loss(mode: str, **options: float | str | bool) -> LossConfig:
    return LossConfig(loss_mode=mode, options=options)


def test_defaults_are_those_of_the_configuration() -> None:
    """And of verl, but for dro_beta, which has none there."""
    actor = ActorConfig()
    sections = {"sapo": actor, **dict.fromkeys(("clip_cov", "kl_cov", "dro"), actor.policy_loss)}
    for mode, section in sections.items():
        for field in dataclasses.fields(OPTIONS[mode]):
            assert getattr(section, field.name) == field.default
    assert (SapoOptions().tau_pos, SapoOptions().tau_neg) == (1.0, 1.05)
    assert ClipCovOptions() == ClipCovOptions(0.0002, 1.0, 5.0)
    assert KlCovOptions() == KlCovOptions(0.0002, 0.1)
    assert DroOptions().dro_beta == 0.05
    assert BypassOptions() == BypassOptions("ppo_clip", "", "2.0", False, "", "")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (loss("vanilla", tau_pos=1.0), r"the loss 'vanilla' has no option 'tau_pos'; it has: none"),
        (loss("sapo", tau=1.0), r"the loss 'sapo' has no option 'tau'; it has: tau_pos, tau_neg"),
        (loss("sapo", tau_pos=0.0), r"tau_pos must be above 0, got 0.0"),
        (loss("sapo", tau_neg=float("nan")), r"tau_neg must be above 0, got nan"),
        (loss("sapo", tau_pos="1"), r"sapo: tau_pos must be a float like 1.0, got '1'"),
        (loss("sapo", tau_pos=True), r"sapo: tau_pos must be a float like 1.0, got True"),
        (loss("clip_cov", clip_cov_ratio=1.5), r"clip_cov_ratio must be above 0 and at most 1, got 1.5"),
        (loss("clip_cov", clip_cov_lb=5.0), r"clip_cov_lb must be below clip_cov_ub, got 5.0 and 5.0"),
        (loss("kl_cov", kl_cov_ratio=0), r"kl_cov_ratio must be above 0 and at most 1, got 0.0"),
        (loss("kl_cov", ppo_kl_coef=-1), r"ppo_kl_coef must be at least 0, got -1.0"),
        (loss("dro", dro_beta=-0.1), r"dro_beta must be above 0, got -0.1"),
        (loss("bypass_mode", loss_type="ppo"), r"loss_type must be ppo_clip or reinforce, got 'ppo'"),
        (loss("bypass_mode", rollout_is="word"), r"rollout_is: got 'word', wants token or sequence"),
        (loss("bypass_mode", rollout_is="token", rollout_is_threshold="-2"), r"rollout_is_threshold: got '-2'"),
        (loss("bypass_mode", rollout_rs="seq_mean_k9"), r"unknown criterion 'seq_mean_k9'"),
        (loss("bypass_mode", rollout_is_batch_normalize=1.0), r"must be a bool like False, got 1.0"),
    ],
)
def test_what_makes_no_sense_is_refused(config: LossConfig, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        check_options(config)


def test_an_int_may_stand_for_a_float() -> None:
    assert read_options(SapoOptions, loss("sapo", tau_pos=2)) == SapoOptions(2.0, 1.05)


@pytest.mark.parametrize("name", ["vanilla", "gspo", "clip_cov", "geo_mean", "cispo", "dppo_tv", "dppo_kl"])
def test_negative_clip_ranges_are_refused(name: str) -> None:
    config = dataclasses.replace(CONFIGS[name], clip_ratio_low=-0.1)
    with pytest.raises(InvalidInputError, match=r"must not be negative, got low -0.1"):
        result_of([[Token(-1.0, -1.0, 1.0)]], config)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_a_part_without_the_column_is_refused(name: str) -> None:
    inputs = dataclasses.replace(inputs_of([[Token(-1.0, -1.0, 1.0)]]), mini_batch_column=None)
    with pytest.raises(InvalidInputError, match=f"loss_mode={name} needs statistics of the whole mini-batch"):
        get_loss(name)(inputs, CONFIGS[name])


BATCH = [
    [Token(-1.0, -1.5, 1.0), Token(-1.0, -0.9, 1.0), Token(-9.0, -1.0, 1.0, mask=0)],
    [Token(-1.0, -3.0, -2.0)],
]
"""Log-ratios 0.5, -0.1; 2.0."""


def bypass(**options: float | str | bool) -> tuple[list[float], dict[str, torch.Tensor]]:
    inputs, result = result_of(BATCH, loss("bypass_mode", **options))
    kept = inputs.layout.mask > 0
    return result.losses[kept].tolist(), {name: value[kept] for name, value in result.token_metrics.items()}


def test_bypass_rejects_tokens_and_sequences() -> None:
    plain, _ = bypass()
    losses, _ = bypass(rollout_rs="token_k1", rollout_rs_threshold="0.7_1.5")
    assert losses == pytest.approx([0.0, plain[1], 0.0])  # μ/π is e^-0.5 = 0.61, e^0.1 and e^-2
    losses, metrics = bypass(rollout_rs="token_k1", rollout_rs_threshold="0.5_2.0")
    assert losses == pytest.approx([plain[0], plain[1], 0.0])
    assert metrics["rollout_corr/rollout_rs_masked_fraction"].tolist() == [0, 0, 1]
    losses, _ = bypass(rollout_rs="seq_max_k2", rollout_rs_threshold="0.1")
    assert losses == [0.0, 0.0, 0.0]


def test_bypass_reinforce_weighs_by_a_band() -> None:
    losses, metrics = bypass(loss_type="reinforce", rollout_is="token", rollout_is_threshold="0.5_2.0")
    weights = torch.tensor([0.5, -0.1], dtype=torch.float64).exp()
    assert losses == pytest.approx([*weights.tolist(), 0.0])  # -w · A · log π with log π = -1; e² is outside
    assert metrics["rollout_corr/rollout_is_mean"].tolist() == pytest.approx([*weights.tolist(), 0.0])


def test_bypass_normalises_by_the_column() -> None:
    inputs = inputs_of(BATCH)
    config = loss("bypass_mode", loss_type="reinforce", rollout_is="token", rollout_is_batch_normalize=True)
    column = torch.full((4,), 1.25, dtype=torch.float64)
    losses = get_loss("bypass_mode")(dataclasses.replace(inputs, mini_batch_column=column), config).losses
    plain = get_loss("bypass_mode")(inputs, loss("bypass_mode", loss_type="reinforce", rollout_is="token")).losses
    torch.testing.assert_close(losses * 1.25, plain)
