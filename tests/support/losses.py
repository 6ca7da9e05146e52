"""Tokens as the losses take them, and mini-batches made at random for tests of the losses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from argosy.algorithms.aggregation import TokenLayout, aggregate
from argosy.algorithms.losses import PolicyLossInputs, PolicyLossResult, get_loss
from argosy.types.records import GlobalNormalizer, LossConfig
from support.loss_references import Token, Tokens

SCALE = 16.0
"""loss_scale_factor in tests."""

CONFIGS: dict[str, LossConfig] = {
    **{
        mode: LossConfig(loss_mode=mode, clip_ratio_high=0.28, loss_scale_factor=SCALE)
        for mode in (
            *("vanilla", "gspo", "sapo", "gpg", "clip_cov", "kl_cov"),
            *("geo_mean", "cispo", "dppo_tv", "dppo_kl", "dro", "bypass_mode"),
        )
    },
    "bypass_mode reinforce": LossConfig(
        loss_mode="bypass_mode",
        loss_scale_factor=SCALE,
        options={"loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": "1.5"},
    ),
    "bypass_mode reinforce sequence": LossConfig(
        loss_mode="bypass_mode",
        loss_scale_factor=SCALE,
        options={"loss_type": "reinforce", "rollout_is": "sequence", "rollout_is_threshold": "1.5"},
    ),
}
"""One for each mode, and for each branch of bypass_mode."""

STOPPED = ("gspo", "cispo", "dppo_tv", "dppo_kl", "bypass_mode reinforce", "bypass_mode reinforce sequence")
"""Those with a stop-gradient inside: their gradient is not the derivative of their value."""


def inputs_of(sequences: Sequence[Tokens]) -> PolicyLossInputs:
    """Float64 tensors of the sequences, end to end."""
    tokens = [token for sequence in sequences for token in sequence]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    owner = torch.tensor([row for row, sequence in enumerate(sequences) for _ in sequence], dtype=torch.int64)
    return PolicyLossInputs(
        log_probs=column([token.new for token in tokens]).requires_grad_(),
        old_log_probs=column([token.old for token in tokens]),
        advantages=column([token.advantage for token in tokens]),
        layout=TokenLayout(column([float(token.mask) for token in tokens]), owner, len(sequences)),
        mini_batch_column=column([float(token.marked) for token in tokens]),
    )


def result_of(sequences: Sequence[Tokens], config: LossConfig) -> tuple[PolicyLossInputs, PolicyLossResult]:
    inputs = inputs_of(sequences)
    return inputs, get_loss(config.loss_mode)(inputs, config)


def normalizer_of(sequences: Sequence[Tokens]) -> GlobalNormalizer:
    counts = [sum(token.mask for token in sequence) for sequence in sequences]
    return GlobalNormalizer(float(sum(counts)), float(sum(count > 0 for count in counts)))


def share_of(
    sequences: Sequence[Tokens], config: LossConfig, normalizer: GlobalNormalizer
) -> tuple[float, list[list[float]]]:
    """The aggregated loss of some sequences of a mini-batch, and its gradient by each token's log-prob."""
    inputs, result = result_of(sequences, config)
    total = aggregate(result.losses, inputs.layout, config.loss_agg_mode, normalizer, config.loss_scale_factor)
    (gradient,) = torch.autograd.grad(total, inputs.log_probs)
    cuts = np.cumsum([len(sequence) for sequence in sequences])[:-1]
    return total.item(), [row.tolist() for row in np.split(gradient.numpy(), cuts)]


def _token(log_prob: float, gap: float, mask: int, marked: bool, advantage: float) -> Token:
    return Token(log_prob, min(log_prob + gap, -1e-3), advantage, mask, marked)


@st.composite
def sequences(draw: st.DrawFn, *, max_count: int = 5, max_length: int = 5) -> list[list[Token]]:
    """Sequences of tokens with one advantage each, as outcome rewards give; masks and marks anywhere."""
    found = []
    for _ in range(draw(st.integers(1, max_count))):
        advantage = draw(st.floats(-3, 3, allow_subnormal=False))
        parts = st.builds(
            _token,
            st.floats(-5, -0.01),
            st.floats(-1.5, 1.5),
            st.integers(0, 1),
            st.booleans(),
            st.just(advantage),
        )
        found.append(draw(st.lists(parts, min_size=0, max_size=max_length)))
    return found
