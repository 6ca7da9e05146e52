"""What every advantage estimator takes and gives. Letters: B samples, N = all response tokens, G groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True, slots=True)
class AdvantageOptions:
    """Keys of `algorithm.*` that estimators read."""

    norm_adv_by_std_in_grpo: bool = True
    gamma: float = 1.0
    lam: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class AdvantageResult:
    """Advantages and what to log about them."""

    advantages: Ragged
    """[N] float32, 0 where the mask is 0."""
    metrics: Mapping[str, float] = field(default_factory=dict)


def group_numbers(groups: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Number hashable group names 0…G-1 by first appearance, [B].

    >>> group_numbers(["b", "a", "b"]).tolist()
    [0, 1, 0]
    """
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups], np.int64)
