"""Statistics over the judged samples of each group, in float64, and the one rule for groups that say nothing.

The rule, the same in every estimator that compares the responses of one prompt (cases B1, B2, B3, G1): a sample without
a score leaves mean and spread and gets advantage 0; a group with one judged sample, or whose rewards are all equal, has
nothing to compare, so its deviations are exactly 0; a batch in which no prompt has a second response is refused, since
nothing could ever be learned from it. (Estimators that whiten the whole batch afterwards shift these zeros with all
other tokens, as their papers do.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from argosy.algorithms.advantages.inputs import AdvantageInputs
from argosy.types.errors import ConfigError

Floats = npt.NDArray[np.float64]

SPREAD_RESOLUTION = 8 * float(np.finfo(np.float32).eps)
"""Rewards of a group that differ by less than this, relative to the largest, are equal: rewards are float32 on the
wire, so a smaller spread is rounding and not a signal (case B3)."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupStatistics:
    """One entry per group, [G]."""

    count: Floats
    """Judged samples."""
    mean: Floats
    """0 for a group with no judged sample."""
    std: Floats
    """Unbiased (n - 1); exactly 0 for groups of one and for groups without spread."""
    flat: npt.NDArray[np.bool_]
    """Groups of at least two judged samples whose rewards are all equal: no gradient comes from them."""

    def metrics(self) -> dict[str, float]:
        """Which share of the groups says nothing, and why."""
        group_count = max(len(self.count), 1)
        return {
            "critic/groups/zero_spread_fraction": float(self.flat.sum() / group_count),
            "critic/groups/singleton_fraction": float((self.count == 1).sum() / group_count),
            "critic/groups/unjudged_fraction": float((self.count == 0).sum() / group_count),
        }


def group_statistics(
    rewards: Floats, group_index: npt.NDArray[np.int64], judged: npt.NDArray[np.bool_]
) -> GroupStatistics:
    """Mean and unbiased standard deviation of rewards [B] within each group, over judged samples only."""
    group_count = int(group_index.max()) + 1 if len(group_index) else 0
    index, values = group_index[judged], rewards[judged]
    count = np.bincount(index, minlength=group_count).astype(np.float64)
    mean = np.bincount(index, weights=values, minlength=group_count) / np.maximum(count, 1)
    squares = np.bincount(index, weights=(values - mean[index]) ** 2, minlength=group_count)
    low, high = np.full(group_count, np.inf), np.full(group_count, -np.inf)
    np.minimum.at(low, index, values)
    np.maximum.at(high, index, values)
    with np.errstate(invalid="ignore"):
        scale = np.maximum(np.abs(low), np.abs(high))
        same = (high - low) <= SPREAD_RESOLUTION * scale
    std = np.where(same, 0.0, np.sqrt(squares / np.maximum(count - 1, 1)))
    return GroupStatistics(count, mean, std, same & (count >= 2))


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Each sample's outcome beside the statistics of its own group, [B] each."""

    rewards: Floats
    """R_i = Σ_t r_t; meaningless (even NaN) where not judged."""
    count: Floats
    """Judged samples of its group."""
    std: Floats
    deviation: Floats
    """R_i − mean(R) of its group; exactly 0 where `signal` is False."""
    signal: npt.NDArray[np.bool_]
    """Judged, and its group has rewards that differ."""
    groups: GroupStatistics


def group_outcomes(inputs: AdvantageInputs, name: str) -> Outcomes:
    """Outcome rewards against their groups. Raises ConfigError when no group has two samples (case B2)."""
    refuse_singletons(inputs, name)
    return compare(inputs.token_rewards.segment_sum(), inputs.group_index, inputs.judged)


def compare(rewards: Floats, group_index: npt.NDArray[np.int64], judged: npt.NDArray[np.bool_]) -> Outcomes:
    """`rewards` [B] against their groups, by the rule above."""
    groups = group_statistics(rewards, group_index, judged)
    mean, std = groups.mean[group_index], groups.std[group_index]  # [B], [B]
    signal = judged & (std > 0)
    return Outcomes(rewards, groups.count[group_index], std, np.where(signal, rewards - mean, 0.0), signal, groups)


def refuse_singletons(inputs: AdvantageInputs, name: str) -> None:
    """Raises ConfigError when every group has one sample: `name` compares samples of a group (case B2)."""
    samples = len(inputs.group_index)
    if samples and np.bincount(inputs.group_index).max() < 2:
        raise ConfigError(
            f"algorithm.adv_estimator={name}: got a batch of {samples} samples from {samples} prompts; it compares the "
            "responses of one prompt, so every advantage would be 0; set actor_rollout_ref.rollout.n ≥ 2"
        )
