"""Two policies in place of three: π_old is the policy that sampled, by the log-probs that the rollout reported.

The pass that recomputes old log-probs is saved; what it would have corrected is left to the loss, under the weights of
the moment. With r = π/μ, μ the sampling policy, and kept_t the verdict of the rejection rules:

    loss_type "ppo_clip":   L = kept · clipped surrogate of `vanilla.py` with π_old := μ
    loss_type "reinforce":  L = -kept · sg[w] · A · log π,   w the importance weight of π/μ (rollout_is), or 1

Weights and rules are those of `argosy.algorithms.rollout_correction`, see there for formulas and papers. With
"ppo_clip" the ratio itself is the importance weight, so w is not applied a second time. A rejected token stays in the
denominators (as in verl). Batch-normalised weights are divided by the mean over the whole mini-batch (verl: over each
micro-batch).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from argosy.algorithms.aggregation import TokenLayout
from argosy.algorithms.losses.base import (
    PolicyLossInputs,
    PolicyLossResult,
    log_ratio,
    loss_result,
    whole_batch_column,
)
from argosy.algorithms.losses.mini_batch import Floats, MiniBatch
from argosy.algorithms.losses.options import read_options
from argosy.algorithms.losses.vanilla import vanilla_loss
from argosy.algorithms.rollout_correction.ratios import LogRatios
from argosy.algorithms.rollout_correction.rejection import apply_rules
from argosy.algorithms.rollout_correction.thresholds import LOSS_TYPES, CorrectionRules, parse_rules
from argosy.algorithms.rollout_correction.weights import importance_weights
from argosy.types.errors import ConfigError, InvalidInputError
from argosy.types.ragged import Ragged
from argosy.types.records import LossConfig

ROLLOUT_IS_THRESHOLD = "2.0"


@dataclass(frozen=True, slots=True)
class BypassOptions:
    """Read from LossConfig.options; the names of `algorithm.rollout_correction.*`, and "" where that is null."""

    loss_type: str = LOSS_TYPES[0]
    """"ppo_clip" or "reinforce"."""
    rollout_is: str = ""
    """"token", "sequence", or "" for no weights."""
    rollout_is_threshold: str = ROLLOUT_IS_THRESHOLD
    """An upper bound "2.0", or a band "0.5_2.0"."""
    rollout_is_batch_normalize: bool = False
    """Divide the weights by their mean."""
    rollout_rs: str = ""
    """Rejection criteria, separated by commas, or ""."""
    rollout_rs_threshold: str = ""
    """Their thresholds."""

    def __post_init__(self) -> None:
        if self.loss_type not in LOSS_TYPES:
            raise InvalidInputError(f"loss_type must be {' or '.join(LOSS_TYPES)}, got {self.loss_type!r}")
        try:
            self.rules()
        except ConfigError as error:
            raise InvalidInputError(str(error)) from error

    @property
    def weighted(self) -> bool:
        """Whether importance weights are applied."""
        return self.loss_type == "reinforce" and bool(self.rollout_is)

    def rules(self) -> CorrectionRules:
        """The options, parsed; without batch normalisation."""
        return parse_rules(
            self.rollout_is or None,
            self.rollout_is_threshold,
            self.rollout_rs or None,
            self.rollout_rs_threshold or None,
        )


def needs_bypass_column(config: LossConfig) -> bool:
    """Only a mean over all weights needs the whole mini-batch."""
    options = read_options(BypassOptions, config)
    return options.weighted and options.rollout_is_batch_normalize


def bypass_column(batch: MiniBatch, config: LossConfig) -> Floats:
    """What each weight is divided by: the mean weight, [N]."""
    options = read_options(BypassOptions, config)
    rules = parse_rules(options.rollout_is, options.rollout_is_threshold, None, None, batch_normalize=True)
    ratios = LogRatios(
        np.where(batch.trained, batch.log_probs - batch.old_log_probs, 0.0), batch.trained, batch.response_mask.offsets
    )
    mean = importance_weights(ratios, rules.weights).normalizer if rules.weights is not None else 1.0
    return np.full(len(ratios.values), mean)


def bypass_loss(inputs: PolicyLossInputs, config: LossConfig) -> PolicyLossResult:
    """Per token, by loss_type. Adds rollout_corr/*: divergences of π from μ, what is rejected, the mean weight."""
    options = read_options(BypassOptions, config)
    weights, kept = _correction(inputs, options)
    if needs_bypass_column(config):
        weights = weights / whole_batch_column(inputs, config)
    if options.loss_type == "ppo_clip":
        result = vanilla_loss(inputs, config)
    else:
        result = loss_result(-weights * inputs.advantages * inputs.log_probs, log_ratio(inputs))
    metrics = dict(result.token_metrics) | {"rollout_corr/rollout_rs_masked_fraction": 1.0 - kept}
    metrics |= _divergences(log_ratio(inputs).detach())
    if options.weighted:
        metrics["rollout_corr/rollout_is_mean"] = weights
    return PolicyLossResult(result.losses * kept, metrics)


def _divergences(log_ratios: Tensor) -> dict[str, Tensor]:
    """Token means of rollout_correction/metrics.py that need no whole sequence, each [N], under the weights of now."""
    return {
        "rollout_corr/kl": -log_ratios,
        "rollout_corr/k3_kl": torch.expm1(log_ratios) - log_ratios,
        "rollout_corr/chi2_token": torch.expm1(2 * log_ratios),
    }


def _correction(inputs: PolicyLossInputs, options: BypassOptions) -> tuple[Tensor, Tensor]:
    """Weights and verdicts [N], constants, by the same functions that the controller uses."""
    rules = options.rules()
    difference = (inputs.log_probs - inputs.old_log_probs).detach()
    if not options.weighted and not rules.rejections:
        return torch.ones_like(difference), torch.ones_like(difference)
    order, offsets = _by_sequence(inputs.layout)
    trained = (inputs.layout.mask > 0)[order].cpu().numpy()
    values = difference[order].double().cpu().numpy()
    ratios = LogRatios(np.where(trained, values, 0.0), trained, offsets)
    weights = np.ones(len(values))
    if options.weighted and rules.weights is not None:
        weights = importance_weights(ratios, rules.weights).applied
    kept, _ = apply_rules(ratios, rules.rejections)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    both = torch.from_numpy(np.stack([weights, kept])).to(difference)[:, back]  # [2, N]
    return both[0], both[1]


def _by_sequence(layout: TokenLayout) -> tuple[Tensor, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Places of the tokens sequence by sequence [N], and each sequence's offsets [B + 1]."""
    counts = torch.bincount(layout.owner, minlength=layout.sequence_count).cpu().numpy()
    return torch.argsort(layout.owner, stable=True), Ragged.from_lengths(np.zeros(int(counts.sum())), counts).offsets
