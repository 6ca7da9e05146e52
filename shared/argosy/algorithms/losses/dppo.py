"""DPPO: a trust region on the divergence of distributions in place of the ratio ("Rethinking the Trust Region in LLM
Reinforcement Learning", 2026, arXiv:2602.04879).

    L = -A · sg[min(r, c)] · log π · valid

A token is valid unless it has already moved too far in the direction that A pushes it:

    dppo_tv:  A > 0: p - p_old ≤ δ_high;    else p_old - p ≤ δ_low              binary total variation
    dppo_kl:  A > 0: D ≤ δ_high or p ≤ p_old;    else D ≤ δ_low or p ≥ p_old    binary KL
              D = p_old·log(p_old/p) + (1 - p_old)·log((1 - p_old)/(1 - p))

p is the sampled token's probability; all other tokens are taken as one, which bounds the divergence from below. A ratio
clip cuts rare tokens (tiny p, large r) that hardly move the distribution and lets frequent ones through; this is the
other way round.

δ_low and δ_high are clip_ratio_low and clip_ratio_high, c is clip_ratio_c, as in verl. The paper advises a large c
(§5.4) and verl's code falls back to 20, but its configuration always sets 3, so 3 it is unless you set it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from argosy.algorithms.losses.base import (
    PolicyLossInputs,
    PolicyLossResult,
    check_clip_range,
    check_ratio_bound,
    log_ratio,
    loss_result,
)
from argosy.types.records import LossConfig

PROBABILITY_FLOOR = 1e-8
"""Added to 1 - p, so that a certain token has a finite divergence."""


def dppo_tv_loss(inputs: PolicyLossInputs, config: LossConfig) -> PolicyLossResult:
    """Per token, within a binary total variation."""
    moved = inputs.log_probs.detach().exp() - inputs.old_log_probs.exp()
    up, down = moved <= config.clip_ratio_high, -moved <= config.clip_ratio_low
    return _masked_gradient(inputs, config, torch.where(inputs.advantages > 0, up, down))


def dppo_kl_loss(inputs: PolicyLossInputs, config: LossConfig) -> PolicyLossResult:
    """Per token, within a binary KL divergence of old from new."""
    new, old = inputs.log_probs.detach(), inputs.old_log_probs
    divergence = binary_kl(old, new)
    up = (divergence <= config.clip_ratio_high) | (new <= old)
    down = (divergence <= config.clip_ratio_low) | (new >= old)
    return _masked_gradient(inputs, config, torch.where(inputs.advantages > 0, up, down))


def binary_kl(old: Tensor, new: Tensor) -> Tensor:
    """KL of Bernoulli(e^old) from Bernoulli(e^new), [N], from log-probs [N]."""
    p_old, p_new = old.exp(), new.exp()
    others = torch.log((1.0 - p_old + PROBABILITY_FLOOR) / (1.0 - p_new + PROBABILITY_FLOOR))
    return p_old * (old - new) + (1.0 - p_old) * others


def _masked_gradient(inputs: PolicyLossInputs, config: LossConfig, valid: Tensor) -> PolicyLossResult:
    """pg_clipfrac counts the tokens outside the region, _lower the valid ones whose weight was bounded by c."""
    check_clip_range(config)
    check_ratio_bound(config)
    log_ratios = log_ratio(inputs).detach()
    ratio = log_ratios.exp()
    losses = -inputs.advantages * ratio.clamp(max=config.clip_ratio_c) * inputs.log_probs * valid
    return loss_result(losses, log_ratios, ~valid, (ratio > config.clip_ratio_c) & valid)
