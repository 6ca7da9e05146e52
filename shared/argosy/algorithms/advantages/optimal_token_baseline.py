"""Optimal token baseline (OTB): at each position the baseline of least gradient variance.

Li et al. 2026, "The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL", arXiv:2602.07078. A token's
squared gradient norm is approximated from the forward pass alone by w_t = 1 - 2π_t + Σ_v π_v², a response's energy up
to t is W_t = Σ_{j≤t} w_j, and over the group

    B_t = Σ_i G_t^i W_t^i / Σ_i W_t^i,    A_t^i = G_t^i - B_t,    G_t = Σ_{t'≥t} r_{t'}.

With importance weights ρ of rollout correction w_t becomes ρ_t² w_t. `optimal_token_baseline` compares tokens at the
same place in the response; `tir_optimal_token_baseline` at the same place among the trained tokens, which is what
responses with tool output in between need.

Where one sample of the group alone reaches position t, or all that reach it have the same G, there is nothing to
compare and A_t is 0 (verl gives the lone sample its G_t, without a baseline).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from argosy.algorithms.advantages.groups import compare, group_statistics, refuse_singletons
from argosy.algorithms.advantages.inputs import AdvantageInputs, AdvantageOptions, AdvantageResult, required
from argosy.algorithms.advantages.tokens import TrainedTokens, discounted_to_go, trained_tokens

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def optimal_token_baseline(inputs: AdvantageInputs, options: AdvantageOptions) -> AdvantageResult:
    """Baselines by place in the response. Raises ConfigError without old_log_probs and sum_pi_squared."""
    del options
    return _against_token_baselines(inputs, "optimal_token_baseline", _place_in_response)


def tir_optimal_token_baseline(inputs: AdvantageInputs, options: AdvantageOptions) -> AdvantageResult:
    """Baselines by place among the trained tokens. Raises ConfigError without old_log_probs and sum_pi_squared."""
    del options
    return _against_token_baselines(inputs, "tir_optimal_token_baseline", _place_among_trained)


def _against_token_baselines(
    inputs: AdvantageInputs, name: str, place: Callable[[TrainedTokens], Ints]
) -> AdvantageResult:
    refuse_singletons(inputs, name)
    tokens = trained_tokens(inputs)
    to_go = discounted_to_go(tokens.fold(inputs.token_rewards), 1.0)  # [M]
    energy = _energy(inputs, tokens, name)  # [M]
    meeting = _meetings(place(tokens), np.repeat(inputs.group_index, np.diff(tokens.offsets)))  # [M]
    everyone = np.ones(len(meeting), np.bool_)
    peers = compare(to_go, meeting, everyone)
    # around the plain mean, as in opo.py
    total = np.bincount(meeting, weights=energy)
    weighted = np.bincount(meeting, weights=energy * peers.deviation)
    baseline = np.where(total > 0, weighted, 0.0) / np.where(total > 0, total, 1.0)  # no energy: the plain mean
    advantages = np.where(peers.signal, peers.deviation - baseline[meeting], 0.0)
    outcomes = group_statistics(inputs.token_rewards.segment_sum(), inputs.group_index, inputs.judged)
    return AdvantageResult(tokens.put(advantages), outcomes.metrics())


def _energy(inputs: AdvantageInputs, tokens: TrainedTokens, name: str) -> Floats:
    """W_t at each trained token, [M]."""
    why = f"algorithm.adv_estimator={name} needs old_log_probs and sum_pi_squared (Σ_v π_v² per token) from the trainer"
    pi = np.exp(tokens.pick(required(inputs, inputs.old_log_probs, why)).values)
    squares = tokens.pick(required(inputs, inputs.sum_pi_squared, why)).values
    norms = np.maximum(1 - 2 * pi + squares, 0.0)  # ≥ (1 - π)² but for rounding
    if inputs.rollout_is_weights is not None:
        norms = norms * tokens.pick(required(inputs, inputs.rollout_is_weights, why)).values ** 2
    running = np.concatenate([np.zeros(1), np.cumsum(norms)])  # [M + 1]
    starts = np.repeat(tokens.offsets[:-1], np.diff(tokens.offsets))  # [M]
    return np.asarray(running[1:] - running[starts], np.float64)


def _place_in_response(tokens: TrainedTokens) -> Ints:
    places = np.arange(len(tokens.mask)) - np.repeat(tokens.full_offsets[:-1], np.diff(tokens.full_offsets))  # [N]
    return np.asarray(places[tokens.mask], np.int64)


def _place_among_trained(tokens: TrainedTokens) -> Ints:
    return np.arange(tokens.offsets[-1]) - np.repeat(tokens.offsets[:-1], np.diff(tokens.offsets))


def _meetings(place: Ints, group: Ints) -> Ints:
    """A number for each (group, place) that occurs, [M]: tokens that share it are compared."""
    longest = np.zeros(int(group.max(initial=-1)) + 1, np.int64)  # [G] places of each group
    np.maximum.at(longest, group, place + 1)
    return np.asarray((np.cumsum(longest) - longest)[group] + place, np.int64)
