"""Rollout correction between log-probs and advantages: importance weights, and tokens that are rejected.

Decoupled: the batch has the trainer's own old log-probs; it gets "rollout_is_weights", and rejected tokens leave
response_mask. Bypass: the engine's log-probs stand for the old ones, and the loss bypass_mode does the rest.
"""

from __future__ import annotations

from argosy.algorithms.rollout_correction.correct import correct
from argosy.algorithms.rollout_correction.thresholds import CorrectionRules, parse_rules
from argosy.config import Config
from argosy.types.batch import TrajectoryBatch


def take_rollout_log_probs(config: Config, batch: TrajectoryBatch) -> TrajectoryBatch:
    """In bypass mode: old_log_probs := rollout_log_probs."""
    if not config.algorithm.rollout_correction.bypass_mode:
        return batch
    return batch.with_column("old_log_probs", batch.ragged("rollout_log_probs"))


def correct_rollout(config: Config, batch: TrajectoryBatch) -> tuple[TrajectoryBatch, dict[str, float]]:
    """The batch with weights and without rejected tokens; metrics wherever both log-probs are known."""
    if config.algorithm.rollout_correction.bypass_mode or not batch.has("old_log_probs"):
        return batch, {}
    found = correct(
        batch.ragged("old_log_probs"), batch.ragged("rollout_log_probs"), batch.ragged("response_mask"), rules(config)
    )
    batch = batch.with_column("response_mask", found.response_mask)
    if found.weights is not None:
        batch = batch.with_column("rollout_is_weights", found.weights)
    return batch, dict(found.metrics)


def rules(config: Config) -> CorrectionRules:
    """`algorithm.rollout_correction.*`, parsed."""
    chosen = config.algorithm.rollout_correction
    return parse_rules(
        chosen.rollout_is,
        chosen.rollout_is_threshold,
        chosen.rollout_rs,
        chosen.rollout_rs_threshold,
        chosen.rollout_is_batch_normalize,
    )
