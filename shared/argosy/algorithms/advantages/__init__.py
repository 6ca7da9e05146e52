"""Advantage estimators, computed in the controller with numpy.

The registry is one literal dict. A new estimator is one small file with a function of the same signature.
"""

from __future__ import annotations

from collections.abc import Callable

from argosy.algorithms.advantages.grpo import grpo
from argosy.algorithms.advantages.inputs import AdvantageInputs, AdvantageOptions, AdvantageResult
from argosy.types.errors import ConfigError

Estimator = Callable[[AdvantageInputs, AdvantageOptions], AdvantageResult]

ESTIMATORS: dict[str, Estimator] = {
    "grpo": grpo,
}


def estimator(name: str) -> Estimator:
    """The estimator called `algorithm.adv_estimator`. Raises ConfigError that lists the known ones."""
    if name not in ESTIMATORS:
        raise ConfigError(
            f"algorithm.adv_estimator: unknown estimator {name!r}; known: {', '.join(sorted(ESTIMATORS))}"
        )
    return ESTIMATORS[name]


__all__ = ["ESTIMATORS", "AdvantageInputs", "AdvantageOptions", "AdvantageResult", "Estimator", "estimator"]
