"""What belongs to particular policy losses."""

from __future__ import annotations

from collections.abc import Iterator

from argosy.config.schema import Config

_LOSS = "actor_rollout_ref.actor.policy_loss"


def check_losses(config: Config) -> Iterator[str]:
    """Bounds that must be in order, and a loss that needs the engine's log-probs."""
    loss = config.actor_rollout_ref.actor.policy_loss
    if not loss.clip_cov_lb < loss.clip_cov_ub:
        yield (
            f"{_LOSS}.clip_cov_lb: got {loss.clip_cov_lb:g}, not below clip_cov_ub={loss.clip_cov_ub:g}: no covariance "
            "lies between them"
        )
    if loss.loss_mode == "bypass_mode" and not config.algorithm.rollout_correction.bypass_mode:
        yield (
            f"{_LOSS}.loss_mode: got bypass_mode with algorithm.rollout_correction.bypass_mode=false: old log-probs "
            "would not be the engine's; set algorithm.rollout_correction.bypass_mode=true"
        )
