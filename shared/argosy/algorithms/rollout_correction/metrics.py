"""rollout_corr/*: how far the sampled policy is from the trained one, and what the correction did. verl's names.

With ℓ = log π_old − log μ over trained tokens, s over sequences with a trained token, and m_s[·] a sequence's mean:

    kl = E[−ℓ]    k3_kl = E[e^ℓ − ℓ − 1]    training_ppl = E_s[exp(−m_s[log π_old])]    rollout_ppl likewise
    ppl_ratio = E_s[exp(−m_s[ℓ])]    chi2_token = E[e^{2ℓ}] − 1    chi2_seq = E_s[exp(2 Σ ℓ)] − 1
    effective sample size (a share, 1 = all weights equal) = E[w]² / E[w²]    Kong 1992

Each is left out where there is no trained token (case H9). Differences from verl: sequences without a trained token
don't count as perplexity 1, and rollout_is_max and _min are those before truncation at both levels.
"""

from __future__ import annotations

import numpy as np

from argosy.algorithms.rollout_correction.ratios import LOG_RATIO_LIMIT, Floats, LogRatios
from argosy.algorithms.rollout_correction.rejection import Criterion
from argosy.algorithms.rollout_correction.thresholds import WeightRule
from argosy.algorithms.rollout_correction.weights import ImportanceWeights
from argosy.types.ragged import Ragged

PREFIX = "rollout_corr/"
LOG_PERPLEXITY_LIMIT = 700.0
"""e^700 is about the largest float64: a perplexity beyond it is shown as that, not as infinite."""


def divergence_metrics(ratios: LogRatios, old_log_probs: Ragged, rollout_log_probs: Ragged) -> dict[str, float]:
    """KL, perplexities and χ² between the two policies."""
    if not ratios.trained.any():
        return {}
    tokens, live = ratios.clamped[ratios.trained], ratios.live
    training = -ratios.means(old_log_probs.values)[live]  # log-perplexities of sequences
    rollout = -ratios.means(rollout_log_probs.values)[live]
    difference = training - rollout
    totals = np.clip(ratios.sums(ratios.values)[live], -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    found = {
        "kl": -ratios.values[ratios.trained].mean(),
        "k3_kl": (np.expm1(tokens) - tokens).mean(),
        "training_ppl": _perplexity(training),
        "training_log_ppl": training.mean(),
        "rollout_ppl": _perplexity(rollout),
        "rollout_log_ppl": rollout.mean(),
        "log_ppl_diff": difference.mean(),
        "log_ppl_abs_diff": np.abs(difference).mean(),
        "log_ppl_diff_max": difference.max(),
        "log_ppl_diff_min": difference.min(),
        "ppl_ratio": np.exp(np.clip(difference, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)).mean(),
        "chi2_token": np.exp(2 * tokens).mean() - 1,
        "chi2_seq": np.exp(2 * totals).mean() - 1,
    }
    return {f"{PREFIX}{name}": float(value) for name, value in found.items()}


def _perplexity(logs: Floats) -> np.float64:
    return np.float64(np.exp(np.minimum(logs, LOG_PERPLEXITY_LIMIT)).mean())


def weight_metrics(ratios: LogRatios, weights: ImportanceWeights, rule: WeightRule) -> dict[str, float]:
    """Of the importance weights: bounded ones for mean, spread and effective sample size, raw ones for the extremes."""
    if not ratios.trained.any():
        return {}
    bounded, live = weights.bounded[ratios.trained], ratios.live
    per_sequence, raw_per_sequence = ratios.means(weights.bounded)[live], ratios.means(weights.raw)[live]
    raw = weights.raw[ratios.trained] if rule.level == "token" else raw_per_sequence  # one per unit that is weighted
    low = 1.0 / rule.upper if rule.lower is None else rule.lower
    found = {
        "mean": bounded.mean(),
        "std": bounded.std(),
        "max": raw.max(),
        "min": raw.min(),
        "eff_sample_size": _effective_share(bounded),
        "ratio_fraction_high": (raw > rule.upper).mean(),
        "ratio_fraction_low": (raw < low).mean(),
        "seq_mean": per_sequence.mean(),
        "seq_std": per_sequence.std(ddof=1) if len(per_sequence) > 1 else 0.0,
        "seq_max": per_sequence.max(),
        "seq_min": per_sequence.min(),
        "seq_max_deviation": np.abs(per_sequence - 1).max(),
        "seq_fraction_high": (raw_per_sequence > rule.upper).mean(),
        "seq_fraction_low": (raw_per_sequence < low).mean(),
    }
    if rule.lower is not None:
        found["oob_ratio"] = ((weights.raw < rule.lower) | (weights.raw > rule.upper))[ratios.trained].mean()
    if rule.batch_normalize:
        found["batch_norm_factor"] = np.float64(weights.normalizer)
    return {f"{PREFIX}rollout_is_{name}": float(value) for name, value in found.items()}


def _effective_share(weights: Floats) -> np.float64:
    square = (weights**2).mean()
    return np.float64(0.0) if square == 0 else weights.mean() ** 2 / square


def rejection_metrics(ratios: LogRatios, criteria: list[Criterion]) -> dict[str, float]:
    """Of each criterion, and of all together: shares of tokens and of sequences that lose a token."""
    if not ratios.trained.any() or not criteria:
        return {}
    metrics: dict[str, float] = {}
    for criterion in criteria:
        rule = criterion.rule
        shown = criterion.statistic[ratios.trained if rule.over == "token" else ratios.live]
        name = f"{PREFIX}rollout_rs_{rule.name}"
        metrics |= {
            f"{name}_mean": float(shown.mean()),
            f"{name}_max": float(shown.max()),
            f"{name}_min": float(shown.min()),
            f"{name}_fraction_high": float((shown > rule.upper).mean()),
            f"{name}_fraction_low": float((shown < rule.lower).mean()),
            **_shares(ratios, ~criterion.kept, name),
        }
    lost = np.any([~criterion.kept for criterion in criteria], axis=0)
    return metrics | _shares(ratios, lost, f"{PREFIX}rollout_rs")


def _shares(ratios: LogRatios, lost: np.ndarray[tuple[int], np.dtype[np.bool_]], name: str) -> dict[str, float]:
    return {
        f"{name}_masked_fraction": float(lost[ratios.trained].mean()),
        f"{name}_seq_masked_fraction": float((ratios.sums(lost)[ratios.live] > 0).mean()),
    }
