"""Generalised advantage estimation, for PPO with a critic.

Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation", arXiv:1506.02438,
eq. 16: A_t = Σ_l (γλ)^l δ_{t+l}, δ_t = r_t + γ V_{t+1} - V_t, with V = 0 after the last token. The critic is trained
towards the returns A_t + V_t. As in verl the advantages, and only they, are then whitened over all trained tokens.

Tokens that the policy did not sample are no steps: see tokens.py (case B13).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from argosy.algorithms.advantages.inputs import AdvantageInputs, AdvantageOptions, AdvantageResult, required
from argosy.algorithms.advantages.tokens import discounted_to_go, trained_tokens
from argosy.algorithms.advantages.whiten import whiten
from argosy.types.ragged import Ragged

Floats = npt.NDArray[np.float64]


def gae(inputs: AdvantageInputs, options: AdvantageOptions) -> AdvantageResult:
    """Whitened advantages, and returns for the critic. Raises ConfigError without values."""
    column = required(
        inputs, inputs.values, "algorithm.adv_estimator=gae needs a critic's values: set critic.enable=true"
    )
    tokens = trained_tokens(inputs)
    values = tokens.pick(column)
    advantages = temporal_differences(tokens.fold(inputs.token_rewards), values, options.gamma, options.lam)
    returns = tokens.put(advantages + values.values)
    return AdvantageResult(tokens.put(whiten(advantages)), returns=returns)


def temporal_differences(rewards: Ragged, values: Ragged, gamma: float, lam: float) -> Floats:
    """A_t of eq. 16, not whitened, float64 [M]; both columns hold trained tokens only."""
    following = np.append(values.values[1:], 0.0)[: len(values.values)]  # [M] V_{t+1}
    following[values.offsets[1:][values.lengths > 0] - 1] = 0.0  # nothing follows the last token
    delta = rewards.values + gamma * following - values.values
    return discounted_to_go(Ragged(delta, values.offsets), gamma * lam)
