"""Statistics over the judged samples of each group, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
