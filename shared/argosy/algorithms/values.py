"""What a critic is trained on, and how well it explains what came.

V the value that is trained, V_old the same before the update, G the return (A + V_old, of `advantages/gae.py`), c the
clip range:

    L = ½ · max((V - G)², (clip(V, V_old - c, V_old + c) - G)²)

Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation", arXiv:1506.02438,
§5, for the squared error; the clip is of OpenAI baselines' PPO2, described by Engstrom et al. 2020, arXiv:2005.12729,
§3, eq. 1: the greater of the two errors, so the clip only ever takes gradient away. The ½ is verl's, as the
coefficient that the value loss usually has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from argosy.algorithms.losses.options import read_options, require
from argosy.types.errors import InvalidInputError
from argosy.types.records import LossConfig

LOSS_MODE = "value"
"""`LossConfig.loss_mode` of a critic's objective."""
CLIPRANGE_VALUE = 0.5


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """Read from LossConfig.options."""

    cliprange_value: float = CLIPRANGE_VALUE
    """c, in units of the return."""

    def __post_init__(self) -> None:
        require("cliprange_value", self.cliprange_value, 0.0, low_open=True)


@dataclass(frozen=True, slots=True, eq=False)
class ValueLossResult:
    """Not yet masked, not yet aggregated."""

    losses: Tensor
    """[N]."""
    token_metrics: Mapping[str, Tensor]
    """critic/vf_clipfrac (the clipped error is the greater one, so the gradient is cut) and critic/vpred_mean, [N]."""


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, config: LossConfig) -> ValueLossResult:
    """Per-token clipped squared error of values [N] (with gradient) against returns [N]; old_values [N] are constants.

    Raises InvalidInputError on a clip range that isn't positive, or an option that isn't known.
    """
    limit = read_options(ValueOptions, config).cliprange_value
    bounded = torch.clamp(values, old_values - limit, old_values + limit)
    plain_error, bounded_error = (values - returns).square(), (bounded - returns).square()
    losses = 0.5 * torch.maximum(plain_error, bounded_error)
    metrics = {"critic/vf_clipfrac": bounded_error > plain_error, "critic/vpred_mean": values}
    return ValueLossResult(losses, {name: value.detach().to(losses.dtype) for name, value in metrics.items()})


def explained_variance(
    values: npt.NDArray[Any], returns: npt.NDArray[Any], mask: npt.NDArray[Any] | None = None
) -> float:
    """1 - Var[G - V] / Var[G] over the trained tokens, in float64: 1 is perfect, 0 no better than a constant.

    Args:
        values: [N] of the critic, before the update that learns from `returns`.
        returns: [N].
        mask: [N], 1 = trained; None takes every token.

    NaN where it has no meaning: for fewer than two tokens, or returns that are all the same.
    """
    if values.shape != returns.shape or (mask is not None and mask.shape != values.shape):
        shapes = (values.shape, returns.shape, None if mask is None else mask.shape)
        raise InvalidInputError(f"values, returns and mask must have one shape, got {shapes}")
    kept = np.ones(values.shape, bool) if mask is None else mask != 0
    seen, target = values[kept].astype(np.float64), returns[kept].astype(np.float64)
    if len(target) < 2 or not target.var() > 0.0:
        return float("nan")
    return float(1.0 - (target - seen).var() / target.var())
