"""`algorithm.*`: from rewards to advantages."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class KlCtrlConfig:
    """The coefficient of the KL penalty in the reward."""

    type: str = "fixed"
    """"fixed", or "adaptive" to steer the KL towards target_kl."""
    kl_coef: float = 0.001
    """The coefficient β, at the start if adaptive."""
    horizon: int = 10000
    """Adaptive: sequences over which β may change by a fifth; larger is slower."""
    target_kl: float = 0.1
    """Adaptive: the KL (nats per token) that is aimed at."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """Advantages and the KL penalty in the reward."""

    adv_estimator: str = "gae"
    """Advantage estimator: "grpo" for now. verl's default, "gae", needs a critic, which is not there yet: set grpo."""
    norm_adv_by_std_in_grpo: bool = True
    """grpo: divide by the group's standard deviation; false is Dr.GRPO."""
    use_kl_in_reward: bool = False
    """Subtract β·KL(old, reference) from each token's reward. Starts the reference service."""
    kl_penalty: str = "kl"
    """Its estimator: "kl" ("k1"), "abs", "mse" ("k2"), "low_var_kl" ("k3")."""
    kl_ctrl: KlCtrlConfig = field(default_factory=KlCtrlConfig)
    """The coefficient β of that penalty."""
