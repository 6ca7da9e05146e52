"""KL(policy ‖ reference) as a term of the loss, per token and differentiable.

Estimators with d = log π - log π_ref at the sampled token (Schulman 2020, "Approximating KL divergence",
http://joschu.net/blog/kl-approx.html):

    k1 = d          unbiased, high variance; its gradient has expectation 0, so as a loss it does nothing on average
    abs = |d|
    k2 = d²/2       biased, low variance; its gradient is the true KL's in expectation, on policy
    k3 = e^{-d} + d - 1    unbiased, never negative

A "+" at the end keeps the estimator's value and takes k2's gradient (straight-through). The numpy form for rewards is
`argosy.algorithms.kl_reward`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from argosy.algorithms.kl_reward import K3_LIMIT, LOG_RATIO_LIMIT
from argosy.types.errors import InvalidInputError


def _k1(difference: Tensor) -> Tensor:
    return difference


def _k2(difference: Tensor) -> Tensor:
    return 0.5 * difference.square()


def _k3(difference: Tensor) -> Tensor:
    bounded = (-difference).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (bounded.exp() - bounded - 1.0).clamp(-K3_LIMIT, K3_LIMIT)


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "kl": _k1,
    "k1": _k1,
    "abs": torch.abs,
    "mse": _k2,
    "k2": _k2,
    "low_var_kl": _k3,
    "k3": _k3,
}
"""kl_loss_type (without "+") → estimate from d."""


def check_kl_type(kind: str) -> None:
    """Raise InvalidInputError on an unknown kl_loss_type."""
    if kind.removesuffix("+") not in ESTIMATORS:
        raise InvalidInputError(f"unknown kl_loss_type {kind!r}; known: {', '.join(ESTIMATORS)}, each also with '+'")


def kl_estimate(log_probs: Tensor, reference: Tensor, kind: str) -> Tensor:
    """Per-token KL estimate [N] in nats from log-probs [N] and the reference's [N]."""
    check_kl_type(kind)
    difference = log_probs - reference
    value = ESTIMATORS[kind.removesuffix("+")](difference)
    if not kind.endswith("+"):
        return value
    gradient = _k2(difference)
    return gradient + (value - gradient).detach()
