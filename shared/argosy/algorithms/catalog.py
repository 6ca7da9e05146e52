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
    aggregation: str = "token-mean"
    """Of a policy loss: the loss_agg_mode that it is meant for, taken where the key is not set."""


_GAMMA, _BY_STD = "algorithm.gamma", "algorithm.norm_adv_by_std_in_grpo"
_GROUP = frozenset({"group"})
_TOKEN_ENERGY = frozenset({"group", "old_log_probs", "sum_pi_squared"})
_OTB_PAPER = "Li et al. 2026, arXiv:2602.07078"

ADVANTAGES: Mapping[str, AlgorithmInfo] = {
    "gae": AlgorithmInfo(
        summary="Generalised advantage estimation against a critic, whitened over the batch: PPO's.",
        formula="A_t = Σ_l (γλ)^l δ_{t+l}, δ_t = r_t + γ·V_{t+1} − V_t; returns = A + V; then A ← whiten(A)",
        paper="Schulman et al. 2016, arXiv:1506.02438, eq. 16",
        keys=(_GAMMA, "algorithm.lam"),
        needs=frozenset({"values"}),
    ),
    "grpo": AlgorithmInfo(
        summary="Outcome reward against the group's mean, divided by the group's standard deviation.",
        formula="A_i = (R_i − mean(R)) / (std(R) + 1e-6)",
        paper="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, §4.1.2",
        keys=(_BY_STD,),
        needs=_GROUP,
    ),
    "dr_grpo": AlgorithmInfo(
        summary="GRPO without the division: hard and easy prompts weigh the same (Dr.GRPO).",
        formula="A_i = R_i − mean(R)",
        paper="Liu et al. 2025, arXiv:2503.20783, eq. 3",
        needs=_GROUP,
    ),
    "grpo_passk": AlgorithmInfo(
        summary="Only the best response of the group learns, by its lead over the second best (pass@k).",
        formula="A_best = (max(R) − second(R)) / (std(R) + 1e-6); all others 0",
        paper="Tang et al. 2025, arXiv:2503.19595, §3",
        keys=(_BY_STD,),
        needs=_GROUP,
    ),
    "reinforce_plus_plus": AlgorithmInfo(
        summary="Discounted rewards to go, whitened over the batch; one response per prompt is enough.",
        formula="A_t = whiten(Σ_{t'≥t} γ^{t'−t}·r_{t'})",
        paper="Hu et al. 2025, REINFORCE++, arXiv:2501.03262",
        keys=(_GAMMA,),
    ),
    "reinforce_plus_plus_baseline": AlgorithmInfo(
        summary="Outcome reward against the group's mean, whitened over the batch.",
        formula="A_i = whiten(R_i − mean(R))",
        paper="Hu et al. 2025, REINFORCE++, arXiv:2501.03262",
        needs=_GROUP,
    ),
    "remax": AlgorithmInfo(
        summary="Rewards to go against the reward of a greedy answer to the same prompt.",
        formula="A_t = Σ_{t'≥t} r_{t'} − R(greedy answer)",
        paper="Li et al. 2024, ReMax, arXiv:2310.10505, algorithm 1",
        needs=frozenset({"baseline"}),
    ),
    "rloo": AlgorithmInfo(
        summary="Outcome reward against the mean of the group's other responses (leave one out).",
        formula="A_i = R_i − Σ_{j≠i} R_j / (n−1) = n/(n−1)·(R_i − mean(R))",
        paper="Ahmadian et al. 2024, arXiv:2402.14740, eq. 8; Kool et al. 2019",
        needs=_GROUP,
    ),
    "opo": AlgorithmInfo(
        summary="Outcome reward against the group's mean weighted by response length.",
        formula="A_i = R_i − Σ_j len_j·R_j / Σ_j len_j",
        paper="Hao et al. 2025, OPO, arXiv:2505.23585",
        needs=_GROUP,
    ),
    "gpg": AlgorithmInfo(
        summary="Outcome reward against the group's mean, scaled up when few samples of the batch are rewarded.",
        formula="A_i = α·(R_i − mean(R)), α = B / count(R ≠ 0)",
        paper="Chu et al. 2025, GPG, arXiv:2504.02546",
        needs=_GROUP,
    ),
    "optimal_token_baseline": AlgorithmInfo(
        summary="At each place in the response, the group's baseline of least gradient variance.",
        formula="A_t = G_t − Σ_i G·W / Σ_i W, W_t = Σ_{j≤t} (1 − 2π_j + Σ_v π_v²), G_t = Σ_{t'≥t} r_{t'}",
        paper=_OTB_PAPER,
        needs=_TOKEN_ENERGY,
    ),
    "tir_optimal_token_baseline": AlgorithmInfo(
        summary="The same at each place among the sampled tokens, for responses with tool output in between.",
        formula="as optimal_token_baseline, t counts sampled tokens",
        paper=_OTB_PAPER,
        needs=_TOKEN_ENERGY,
    ),
    "gdpo": AlgorithmInfo(
        summary="Each named reward normalised in the group on its own, then weighed, summed and whitened.",
        formula="A_i = whiten(Σ_k weight_k·(R_i^k − mean(R^k)) / (std(R^k) + 1e-6))",
        paper="Liu et al. 2026, GDPO, arXiv:2601.05242, eq. 4–6",
        keys=("algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights", _BY_STD),
        needs=frozenset({"group", "reward_parts"}),
    ),
}
"""algorithm.adv_estimator → info."""


def estimator_needs(name: str) -> frozenset[str]:
    """What the estimator of that name must be given; nothing for an unknown name, which is refused elsewhere."""
    return ADVANTAGES[name].needs if name in ADVANTAGES else frozenset()


_ACTOR = "actor_rollout_ref.actor"
_CLIP = (f"{_ACTOR}.clip_ratio", f"{_ACTOR}.clip_ratio_low", f"{_ACTOR}.clip_ratio_high")

LOSSES: Mapping[str, AlgorithmInfo] = {
    "vanilla": AlgorithmInfo(
        summary="PPO's clipped surrogate, with clip-higher and dual clip.",
        formula="L = max(−A·r, −A·clip(r, 1−ε_low, 1+ε_high)); where A < 0: min(L, −A·c)",
        paper="Schulman et al. 2017, arXiv:1707.06347, eq. 7; Ye et al. 2020, arXiv:1912.09729, eq. 5; "
        "Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 10",
        keys=(
            *_CLIP,
            f"{_ACTOR}.clip_ratio_c",
        ),
    ),
    "gspo": AlgorithmInfo(
        summary="Clipped surrogate on one length-normalised importance ratio for the whole sequence.",
        formula="s = exp(mean_t log r_t);  L_t = max(−A·s, −A·clip(s, 1−ε_low, 1+ε_high)), gradient through log π_t",
        paper="Zheng et al. 2025, arXiv:2507.18071, eqs. 5, 7, 13, 14",
        keys=_CLIP,
        aggregation="seq-mean-token-mean",
    ),
    "sapo": AlgorithmInfo(
        summary="A smooth gate in place of a clip, with a temperature for each sign of the advantage.",
        formula="L = −A·(4/τ)·σ(τ·(r−1)), τ = τ_pos where A > 0, else τ_neg",
        paper="Gao et al. 2025, arXiv:2511.20347, eqs. 5, 6",
        keys=(f"{_ACTOR}.tau_pos", f"{_ACTOR}.tau_neg"),
        aggregation="seq-mean-token-mean",
    ),
    "gpg": AlgorithmInfo(
        summary="The plain policy gradient, for fresh samples.",
        formula="L = −A·log π",
        paper="Chu et al. 2025, arXiv:2504.02546, §3",
    ),
    "clip_cov": AlgorithmInfo(
        summary="Clipped surrogate without a few random tokens of those that would cost the most entropy.",
        formula="cov = (A − mean A)·(log π − mean log π);  L = 0 on ρ·N random tokens with ω_low < cov < ω_high, "
        "else the clipped surrogate",
        paper="Cui et al. 2025, arXiv:2505.22617, §4",
        keys=(*_CLIP, *(f"{_ACTOR}.policy_loss.clip_cov_{name}" for name in ("ratio", "lb", "ub"))),
    ),
    "kl_cov": AlgorithmInfo(
        summary="Unclipped surrogate with a KL penalty on the tokens that would cost the most entropy.",
        formula="L = −A·r, on the k·N tokens with the largest cov: + β·|log π − log π_old|",
        paper="Cui et al. 2025, arXiv:2505.22617, §4",
        keys=(f"{_ACTOR}.policy_loss.kl_cov_ratio", f"{_ACTOR}.policy_loss.ppo_kl_coef"),
    ),
    "geo_mean": AlgorithmInfo(
        summary="GMPO: the geometric mean of the sequence's clipped token ratios.",
        formula="L = −A·exp(mean_t z_t), z_t = log r_t clipped to [−ε_low, ε_high] where A pushes it out",
        paper="Zhao et al. 2025, arXiv:2507.20673, §3",
        keys=_CLIP,
        aggregation="seq-mean-token-mean",
    ),
    "cispo": AlgorithmInfo(
        summary="Policy gradient weighted by the clipped ratio: no token loses its gradient.",
        formula="L = −sg[clip(r, 1−ε_low, 1+ε_high)]·A·log π",
        paper="MiniMax 2025 (MiniMax-M1), arXiv:2506.13585, eqs. 4, 5",
        keys=_CLIP,
    ),
    "dppo_tv": AlgorithmInfo(
        summary="Policy gradient within a trust region of binary total variation.",
        formula="L = −A·sg[min(r, c)]·log π where A > 0: p − p_old ≤ ε_high, else p_old − p ≤ ε_low; 0 elsewhere",
        paper="Rethinking the Trust Region in LLM Reinforcement Learning, 2026, arXiv:2602.04879",
        keys=(*_CLIP, f"{_ACTOR}.clip_ratio_c"),
    ),
    "dppo_kl": AlgorithmInfo(
        summary="Policy gradient within a trust region of binary KL divergence.",
        formula="L = −A·sg[min(r, c)]·log π where KL(p_old, p) ≤ ε or A pulls p back; 0 elsewhere",
        paper="Rethinking the Trust Region in LLM Reinforcement Learning, 2026, arXiv:2602.04879",
        keys=(*_CLIP, f"{_ACTOR}.clip_ratio_c"),
    ),
    "dro": AlgorithmInfo(
        summary="Policy gradient with a quadratic leash on the log-ratio.",
        formula="L = −(A·log π − β/2·(log π − log π_old)²)",
        paper="Richemond et al. 2024, arXiv:2405.19107, §3; Kimi k1.5, arXiv:2501.12599, §2.3.2",
        keys=(f"{_ACTOR}.policy_loss.dro_beta",),
    ),
    "bypass_mode": AlgorithmInfo(
        summary="Two policies: the sampling engine's log-probs stand for the old ones, and the loss corrects for it.",
        formula="ppo_clip: the clipped surrogate with π_old := π_rollout;  reinforce: L = −sg[w]·A·log π, w from "
        "π/π_rollout; rejected tokens 0",
        paper="Yao et al. 2025 (TIS); Liu et al. 2025 (MIS); see rollout correction",
        keys=(
            *_CLIP,
            f"{_ACTOR}.clip_ratio_c",
            *(
                f"algorithm.rollout_correction.{name}"
                for name in (
                    *("loss_type", "rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize"),
                    *("rollout_rs", "rollout_rs_threshold"),
                )
            ),
        ),
    ),
}
"""actor_rollout_ref.actor.policy_loss.loss_mode → info."""

_SCHULMAN = "Schulman 2020, Approximating KL Divergence, http://joschu.net/blog/kl-approx.html"
_K1 = AlgorithmInfo(
    "Unbiased, high variance; as a loss its gradient has expectation 0.", "d = log π − log π_ref", _SCHULMAN
)
_K2 = AlgorithmInfo("Biased, low variance; its gradient is the true KL's in expectation, on policy.", "d²/2", _SCHULMAN)
_K3 = AlgorithmInfo("Unbiased, never negative, bounded by 10.", "e^{−d} + d − 1", _SCHULMAN)

KL: Mapping[str, AlgorithmInfo] = {
    "kl": _K1,
    "k1": _K1,
    "abs": AlgorithmInfo("The size of the log-ratio.", "|d|", _SCHULMAN),
    "mse": _K2,
    "k2": _K2,
    "low_var_kl": _K3,
    "k3": _K3,
}
"""kl_loss_type and kl_penalty → info. As a loss each also with "+": its value with k2's gradient (straight-through)."""

AGGREGATION: Mapping[str, AlgorithmInfo] = {
    "token-mean": AlgorithmInfo(
        "Mean over all trained tokens of the mini-batch: long answers weigh more.",
        "Σ L·m / Σ m",
        "Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 8",
    ),
    "seq-mean-token-sum": AlgorithmInfo(
        "Mean over sequences of their sums.", "Σ_s Σ_t L·m / sequences", "Liu et al. 2025 (Dr.GRPO), arXiv:2503.20783"
    ),
    "seq-mean-token-mean": AlgorithmInfo(
        "Mean over sequences of their means: every answer weighs the same.",
        "Σ_s (Σ_t L·m / Σ_t m) / sequences",
        "Shao et al. 2024 (GRPO), arXiv:2402.03300, eq. 3",
    ),
    "seq-mean-token-sum-norm": AlgorithmInfo(
        "Mean over sequences of their sums, divided by a constant.",
        "Σ_s Σ_t L·m / (sequences · constant)",
        "Liu et al. 2025 (Dr.GRPO), arXiv:2503.20783, §3.2",
        keys=(f"{_ACTOR}.loss_scale_factor",),
    ),
}
"""loss_agg_mode → info; denominators are of the global mini-batch."""

VALUE: Mapping[str, AlgorithmInfo] = {
    "value": AlgorithmInfo(
        summary="Squared error against the returns; a step out of the range around the old value teaches nothing.",
        formula="L = ½·max((V − G)², (clip(V, V_old − c, V_old + c) − G)²)",
        paper="Schulman et al. 2016, arXiv:1506.02438, §5; clip: Engstrom et al. 2020, arXiv:2005.12729, §3",
        keys=("critic.cliprange_value",),
        needs=frozenset({"values"}),
    ),
}
"""The critic's loss → info."""

_CORRECTION_KEYS = ("algorithm.rollout_correction.rollout_is_threshold",)
_REJECTION_KEYS = ("algorithm.rollout_correction.rollout_rs_threshold",)
_MIS = (
    "Liu et al. 2025, When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch; "
    "Schulman 2020, Approximating KL Divergence"
)


def _rejection(name: str) -> AlgorithmInfo:
    over, _, kind = name.rpartition("_")
    estimate = {"k1": "k1 = −ℓ", "k2": "k2 = ℓ²/2", "k3": "k3 = e^ℓ − 1 − ℓ"}[kind]
    unit = {"token": "", "seq_sum": "Σ_t ", "seq_mean": "mean_t ", "seq_max": "max_t "}[over]
    what = "tokens" if over == "token" else "whole sequences"
    bounds = f"log lower ≤ {unit}{kind} ≤ log upper" if kind == "k1" else f"{unit}{kind} ≤ threshold"
    return AlgorithmInfo(
        summary=f"Takes {what} out of the loss where the sampling engine and the trainer differ too much.",
        formula=f"kept where {bounds};  {estimate},  ℓ = log π_old − log π_rollout",
        paper=_MIS,
        keys=_REJECTION_KEYS,
    )


ROLLOUT_CORRECTION: Mapping[str, AlgorithmInfo] = {
    "token": AlgorithmInfo(
        summary="Importance weight of each token for what the engine sampled and the trainer trains.",
        formula="w_t = min(e^{ℓ_t}, threshold); with a band lo_hi: 0 outside it;  ℓ = log π_old − log π_rollout",
        paper="Yao et al. 2025 (TIS); Ling Team 2025 (IcePop), arXiv:2510.18855; decoupled: Hilton et al. 2021, "
        "arXiv:2110.00641",
        keys=(*_CORRECTION_KEYS, "algorithm.rollout_correction.rollout_is_batch_normalize"),
    ),
    "sequence": AlgorithmInfo(
        summary="One importance weight for all tokens of a sequence: no bias, more variance.",
        formula="w = min(e^{Σ_t ℓ_t}, threshold); with a band lo_hi: 0 outside it",
        paper="Liu et al. 2025, When Speed Kills Stability; decoupled: Hilton et al. 2021, arXiv:2110.00641",
        keys=(*_CORRECTION_KEYS, "algorithm.rollout_correction.rollout_is_batch_normalize"),
    ),
    **{
        name: _rejection(name)
        for name in (
            *("token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3"),
            *("seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3"),
        )
    },
}
"""algorithm.rollout_correction.rollout_is ("token", "sequence") and .rollout_rs (the rest, comma list) → info."""
