"""Advantage estimators, computed in the controller with numpy.

The registry is one literal dict. A new estimator is one small file with a function of the same signature.
"""

from __future__ import annotations

from collections.abc import Callable

from argosy.algorithms.advantages.gae import gae
from argosy.algorithms.advantages.gdpo import gdpo
from argosy.algorithms.advantages.gpg import gpg
from argosy.algorithms.advantages.grpo import dr_grpo, grpo, grpo_passk
from argosy.algorithms.advantages.inputs import AdvantageInputs, AdvantageOptions, AdvantageResult
from argosy.algorithms.advantages.opo import opo
from argosy.algorithms.advantages.optimal_token_baseline import optimal_token_baseline, tir_optimal_token_baseline
from argosy.algorithms.advantages.reinforce_plus_plus import reinforce_plus_plus, reinforce_plus_plus_baseline
from argosy.algorithms.advantages.remax import remax
from argosy.algorithms.advantages.rloo import rloo
from argosy.types.errors import ConfigError

Estimator = Callable[[AdvantageInputs, AdvantageOptions], AdvantageResult]

ESTIMATORS: dict[str, Estimator] = {
    "gae": gae,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "grpo_passk": grpo_passk,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "remax": remax,
    "rloo": rloo,
    "opo": opo,
    "gpg": gpg,
    "optimal_token_baseline": optimal_token_baseline,
    "tir_optimal_token_baseline": tir_optimal_token_baseline,
    "gdpo": gdpo,
}


def estimator(name: str) -> Estimator:
    """The estimator called `algorithm.adv_estimator`. Raises ConfigError that lists the known ones."""
    if name not in ESTIMATORS:
        raise ConfigError(
            f"algorithm.adv_estimator: unknown estimator {name!r}; known: {', '.join(sorted(ESTIMATORS))}"
        )
    return ESTIMATORS[name]


__all__ = ["ESTIMATORS", "AdvantageInputs", "AdvantageOptions", "AdvantageResult", "Estimator", "estimator"]
