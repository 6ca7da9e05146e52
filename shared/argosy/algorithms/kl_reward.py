"""KL in the reward: r_t -= β · KL_t(old, reference), with a fixed or an adaptive β.

Ziegler et al. 2019, "Fine-Tuning Language Models from Human Preferences", arXiv:1909.08593, §2.2 for the penalty and
the controller: β ← β · (1 + clip(KL/target - 1, ±ERROR_LIMIT) · n / horizon).
Per-token estimators of KL with d = log p - log q (Schulman 2020, "Approximating KL divergence"): k1 = d, k2 = d²/2,
k3 = e^{-d} + d - 1, abs = |d|.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from argosy.types.errors import ConfigError

Floats = npt.NDArray[np.float64]

LOG_RATIO_LIMIT = 20.0
"""|d| that enters an exponential: e^20 is far beyond anything that still trains, and stays finite in float32."""
K3_LIMIT = 10.0
"""Bound of k3, so that one token can't own the reward or the gradient."""
ERROR_LIMIT = 0.2
"""Most that the adaptive controller reacts to, as a share of the target (Ziegler et al. 2019, §2.2)."""


def _k1(difference: Floats) -> Floats:
    return difference


def _k2(difference: Floats) -> Floats:
    return 0.5 * difference**2


def _k3(difference: Floats) -> Floats:
    bounded = np.clip(-difference, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return np.asarray(np.clip(np.exp(bounded) - bounded - 1.0, -K3_LIMIT, K3_LIMIT), np.float64)


PENALTIES: dict[str, Callable[[Floats], Floats]] = {
    "kl": _k1,
    "k1": _k1,
    "abs": np.abs,
    "mse": _k2,
    "k2": _k2,
    "low_var_kl": _k3,
    "k3": _k3,
}
"""kl_penalty (without "+") → estimate from d."""


def kl_penalty(log_prob: npt.NDArray[Any], reference: npt.NDArray[Any], kind: str) -> Floats:
    """Per-token KL estimate [N] in nats from log-probs [N]. Raises ConfigError on an unknown kind.

    A "+" at the end changes only gradients (`argosy.algorithms.kl`), of which a reward has none.
    """
    kind = kind.removesuffix("+")
    if kind not in PENALTIES:
        raise ConfigError(f"algorithm.kl_penalty: unknown estimator {kind!r}; known: {', '.join(PENALTIES)}")
    return PENALTIES[kind](np.asarray(log_prob, np.float64) - np.asarray(reference, np.float64))


@dataclass(slots=True)
class KLController:
    """β of the KL penalty in the reward: fixed when `horizon` is None, else adaptive. A checkpoint saves `coef`."""

    coef: float
    target: float = 0.1
    horizon: float | None = None

    def update(self, current_kl: float, sequence_count: int) -> None:
        """Move β after a step whose mean per-token KL was `current_kl` over `sequence_count` sequences.

        A KL that isn't finite says nothing: β stays, for a NaN in it would stay for the rest of the run.
        """
        if self.horizon is None or not math.isfinite(current_kl):
            return
        error = float(np.clip(current_kl / self.target - 1.0, -ERROR_LIMIT, ERROR_LIMIT))
        self.coef *= 1.0 + error * sequence_count / self.horizon
