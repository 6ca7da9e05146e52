"""What there is to choose from, without the code: names, formulas, papers and keys of every algorithm family.

This module imports neither torch nor numpy, so that the configuration can check a name and `argosy algorithms` can list
them all in a moment. Tests hold each family equal to the registry that implements it. docs/algorithms.md is made from
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AlgorithmInfo:
    """One entry of the catalog."""

    summary: str
    """What it is, in one sentence."""
    formula: str
    """In plain Unicode, on one line; letters as in the implementing file's docstring."""
    paper: str
    """Authors, year, arXiv number, equation or section."""
    keys: tuple[str, ...] = ()
    """Configuration keys, full paths, that only this algorithm (or family) reads, beside the one that chooses it."""
    needs: frozenset[str] = frozenset()
    """What it must be given: "group" (several responses of one prompt), "values" (a critic), "baseline" (a greedy
    answer of each prompt), "sum_pi_squared", "old_log_probs", "reward_parts"."""


ADVANTAGES: Mapping[str, AlgorithmInfo] = {
    "grpo": AlgorithmInfo(
        summary="Outcome reward against the group's mean, divided by the group's standard deviation.",
        formula="A_i = (R_i − mean(R)) / (std(R) + 1e-6)",
        paper="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, §4.1.2",
        keys=("algorithm.norm_adv_by_std_in_grpo",),
        needs=frozenset({"group"}),
    ),
}
"""algorithm.adv_estimator → info."""

LOSSES: Mapping[str, AlgorithmInfo] = {
    "vanilla": AlgorithmInfo(
        summary="PPO's clipped surrogate, with clip-higher and dual clip.",
        formula="L = max(−A·r, −A·clip(r, 1−ε_low, 1+ε_high)); where A < 0: min(L, −A·c)",
        paper="Schulman et al. 2017, arXiv:1707.06347, eq. 7; Ye et al. 2020, arXiv:1912.09729, eq. 5; "
        "Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 10",
        keys=(
            "actor_rollout_ref.actor.clip_ratio",
            "actor_rollout_ref.actor.clip_ratio_low",
            "actor_rollout_ref.actor.clip_ratio_high",
            "actor_rollout_ref.actor.clip_ratio_c",
        ),
    ),
}
"""actor_rollout_ref.actor.policy_loss.loss_mode → info."""
