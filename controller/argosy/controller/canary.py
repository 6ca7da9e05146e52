"""The log-prob canary: in every step, do the engine that sampled and the trainer mean the same distribution?"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from argosy.algorithms.agreement import rollout_agreement
from argosy.config import Config
from argosy.types.batch import TrajectoryBatch

log = logging.getLogger(__name__)

DISAGREEMENT = 0.05
"""Mean |π_trainer - π_rollout| above which a step is warned about: bfloat16 stays well below, stale weights don't."""


def samples_from_the_full_distribution(config: Config) -> bool:
    """Whether rollout log-probs are of the policy itself: filters and penalties change what is sampled from."""
    rollout = config.actor_rollout_ref.rollout
    filtered = rollout.top_p < 1 or rollout.top_k > 0 or config.argosy.rollout.min_p > 0
    return rollout.do_sample and not filtered and rollout.repetition_penalty == 1


def warn_of_disagreement(config: Config, metrics: Mapping[str, float], step: int) -> None:
    """The log-prob canary of every step: the engine and the trainer must mean the same distribution.

    Tokens of an older policy rightly differ from the trainer's, the more the higher the learning rate: with any in a
    step this says nothing, and the parity gate after each sync is what finds weights that did not arrive.
    """
    if metrics.get("staleness/max", 0.0) > 0:
        return
    mean = metrics.get("training/rollout_probs_diff_mean", 0.0)
    if mean > DISAGREEMENT and samples_from_the_full_distribution(config):
        log.warning(
            "step %d: rollout and trainer differ by %.3f in the mean probability of sampled tokens: look for weights "
            "that did not arrive, another temperature, or different precision on the two sides",
            step,
            mean,
        )


def agreement_metrics(batch: TrajectoryBatch) -> dict[str, float]:
    """Rollout against trainer, where old log-probs were computed; else the trainer reports it from its update."""
    if not batch.has("old_log_probs"):
        return {}
    trained = batch.ragged("response_mask").values.astype(bool)
    ours, theirs = batch.ragged("old_log_probs").values, batch.ragged("rollout_log_probs").values
    return rollout_agreement(ours[trained], theirs[trained])
