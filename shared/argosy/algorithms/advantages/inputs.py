"""What every advantage estimator takes and gives. Letters: B samples, N = all response tokens, G groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from argosy.types.errors import ConfigError
from argosy.types.ragged import Ragged


@dataclass(frozen=True, slots=True, eq=False)
class AdvantageInputs:
    """The rewards of one batch, ragged."""

    token_rewards: Ragged
    """Reward of each response token, [N]: the outcome's score on the last token, a KL penalty on all."""
    response_mask: Ragged
    """1 = sampled by the policy, [N]; tool and user tokens are 0."""
    group_index: npt.NDArray[np.int64]
    """Which group each sample belongs to, [B], numbers 0…G-1 in any order."""
    judged: npt.NDArray[np.bool_]
    """False for samples without a score (abstained or failed), [B]: they leave mean and spread, and get advantage 0."""
    values: Ragged | None = None
    """The critic's V of each response token, before the update, [N]."""
    old_log_probs: Ragged | None = None
    """Log-probability of each response token under the policy that the update starts from, [N]."""
    sum_pi_squared: Ragged | None = None
    """Σ_v π_v² of the policy's distribution at each response token, [N], in (0, 1]."""
    rollout_is_weights: Ragged | None = None
    """Importance weight of each response token that rollout correction gives, [N]."""
    baseline: npt.NDArray[np.float64] | None = None
    """Reward of the greedy answer to each sample's prompt, [B]; NaN = nobody could judge it."""
    reward_parts: Mapping[str, npt.NDArray[np.float64]] | None = None
    """The named rewards that a sample's score is made of, each [B]; NaN = not given for that sample."""


@dataclass(frozen=True, slots=True)
class AdvantageOptions:
    """Keys of `algorithm.*` that estimators read."""

    norm_adv_by_std_in_grpo: bool = True
    """False = no division by the group's deviation (Dr.GRPO)."""
    gamma: float = 1.0
    """Discount of later rewards, in [0, 1]."""
    lam: float = 1.0
    """GAE's λ, in [0, 1]: 1 = whole returns against the critic, 0 = one step."""
    gdpo_weights: Mapping[str, float] | None = None
    """Weight of each reward part that counts in GDPO; None = 1 for every part there is."""


@dataclass(frozen=True, slots=True, eq=False)
class AdvantageResult:
    """Advantages and what to log about them."""

    advantages: Ragged
    """[N] float32, 0 where the mask is 0."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    returns: Ragged | None = None
    """What the critic's values should become, [N] float32; only from estimators that use values."""


def required(inputs: AdvantageInputs, column: Ragged | None, why: str) -> Ragged:
    """A per-token column that an estimator cannot do without.

    Raises ConfigError(why) when it is missing, ValueError when it belongs to other responses.
    """
    if column is None:
        raise ConfigError(f"{why}; this batch has none")
    if not np.array_equal(column.offsets, inputs.response_mask.offsets):
        raise ValueError(
            f"a column of {len(column.values)} tokens in {len(column)} responses for a mask of "
            f"{len(inputs.response_mask.values)} tokens in {len(inputs.response_mask)}"
        )
    return column


def group_numbers(groups: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Number hashable group names 0…G-1 by first appearance, [B].

    >>> group_numbers(["b", "a", "b"]).tolist()
    [0, 1, 0]
    """
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups], np.int64)
