"""The catalog in the order it is shown: `argosy algorithms` and docs/algorithms.md are made from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from argosy.algorithms.catalog import (
    ADVANTAGES,
    AGGREGATION,
    KL,
    LOSSES,
    ROLLOUT_CORRECTION,
    VALUE,
    AlgorithmInfo,
)


@dataclass(frozen=True, slots=True)
class Family:
    """Algorithms that stand in for one another."""

    title: str
    intro: str
    """What the family does and which letters its formulas use."""
    chosen_by: tuple[str, ...]
    """Keys that take one of the names; empty where another choice brings it along."""
    entries: Mapping[str, AlgorithmInfo]


FAMILIES: Mapping[str, Family] = {
    "advantages": Family(
        "Advantage estimators",
        "From rewards to advantages, over the whole batch in the controller. R_i is the reward of response i, mean and "
        "(unbiased) std are over the judged responses to the same prompt, t counts tokens that the policy sampled. A "
        "prompt with one judged response, or whose responses all score the same, has nothing to compare: its "
        "deviations are exactly 0. Responses that nobody could judge leave mean and spread and are not trained. A "
        "batch in which no prompt has a second response is refused by estimators that need a group.",
        ("algorithm.adv_estimator",),
        ADVANTAGES,
    ),
    "losses": Family(
        "Policy losses",
        "The loss of each token, in the trainer. r = π/π_old is the importance ratio, A the advantage, sg[·] stops the "
        "gradient.",
        ("actor_rollout_ref.actor.policy_loss.loss_mode",),
        LOSSES,
    ),
    "rollout_correction": Family(
        "Rollout correction",
        "For the difference between the engine that sampled and the trainer that trains: importance weights, and "
        "rejection of what differs too much. ℓ = log π_old − log π_rollout of a token.",
        ("algorithm.rollout_correction.rollout_is", "algorithm.rollout_correction.rollout_rs"),
        ROLLOUT_CORRECTION,
    ),
    "kl": Family(
        "KL estimators",
        "The divergence from the reference, per token, as a loss (actor.use_kl_loss) or taken off the reward "
        "(algorithm.use_kl_in_reward). d = log π − log π_ref. As a loss each also with `+` behind its name: its value "
        "with k2's gradient.",
        ("actor_rollout_ref.actor.kl_loss_type", "algorithm.kl_penalty"),
        KL,
    ),
    "aggregation": Family(
        "Loss aggregation",
        "How the losses L of tokens with mask m become one number, normalised over the whole mini-batch whatever the "
        "micro-batches and ranks.",
        ("actor_rollout_ref.actor.loss_agg_mode",),
        AGGREGATION,
    ),
    "value": Family(
        "Value loss",
        "How the critic learns; it is there when algorithm.adv_estimator=gae or critic.enable=true.",
        (),
        VALUE,
    ),
}
"""Name of the family → family."""

NEEDS: Mapping[str, str] = {
    "group": "several responses to each prompt (actor_rollout_ref.rollout.n ≥ 2)",
    "values": "a critic (critic.*)",
    "baseline": "a greedy answer to each prompt, which the loop asks for",
    "old_log_probs": "log-probs of the policy before the update, which the trainer gives",
    "sum_pi_squared": "Σ_v π_v² of each token, which the trainer gives",
    "reward_parts": "a scorer that returns named numbers",
}
"""Each word of AlgorithmInfo.needs, in full."""
