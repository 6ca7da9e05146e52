"""`custom_reward_function.*`: the user's own scorer; `reward_model.*`: what is made of scores."""

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


@dataclass(frozen=True)
class OverlongBufferConfig:
    """DAPO's soft punishment of answers that nearly run out of room."""

    enable: bool = False
    """Take a penalty off the score of long answers: 0 up to max_resp_len - len tokens, then falling to
    -penalty_factor at max_resp_len."""
    len: int | None = None
    """Tokens over which it falls; required if on."""
    penalty_factor: float = 1.0
    """Penalty at max_resp_len."""
    log: bool = False
    """Report reward/overlong_reward and reward/overlong (share of answers with a penalty)."""


@dataclass(frozen=True)
class RewardKwargsConfig:
    """Arguments of the reward manager."""

    overlong_buffer_cfg: OverlongBufferConfig = field(default_factory=OverlongBufferConfig)
    """The overlong penalty, of reward_manager=dapo."""
    max_resp_len: int | None = None
    """Length at which that penalty is whole; null takes data.max_response_length."""


@dataclass(frozen=True)
class RewardModelConfig:
    """From a scorer's numbers to rewards, and whether a reward model gives them."""

    enable: bool = False
    """A reward model scores every sample, as argosy.reward.kind=model; its keys are argosy.reward.model.*."""
    reward_manager: str = "naive"
    """"naive": the score is the reward; "batch": the same, from a function that takes lists, as verl's batch manager
    calls it; "dapo": with the overlong penalty, where that is on."""
    reward_kwargs: RewardKwargsConfig = field(default_factory=RewardKwargsConfig)
    """Its arguments."""
