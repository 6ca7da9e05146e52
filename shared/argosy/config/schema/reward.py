"""`custom_reward_function.*`: the user's own scorer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CustomRewardConfig:
    """A Python function that scores in place of the built-in scorers."""

    path: str | None = None
    """Python file that defines it; null uses the built-in scorer of each row's data source."""
    name: str = "compute_score"
    """The function's name: `f(data_source, solution_str, ground_truth, extra_info=None, **reward_kwargs)`, plain or
    async."""
    reward_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the function."""
