from __future__ import annotations

import numpy as np
import pytest
import torch

from argosy.algorithms.aggregation import TokenLayout
from argosy.algorithms.losses import PolicyLossInputs
from argosy.algorithms.losses.bypass_mode import bypass_loss
from argosy.algorithms.rollout_correction.metrics import divergence_metrics
from argosy.algorithms.rollout_correction.ratios import LogRatios
from argosy.types.ragged import Ragged
from argosy.types.records import LossConfig


def test_the_loss_of_bypass_mode_reports_what_the_controller_would() -> None:
    """Same names, same numbers, from the weights of the moment; means over trained tokens."""
    rng = np.random.default_rng(0)
    lengths = [3, 1, 4]
    mask = Ragged.from_lengths(np.array([1, 1, 0, 1, 1, 0, 1, 1], np.int8), lengths)
    current, rollout = (Ragged.from_lengths(rng.normal(-1.0, 0.4, 8), lengths) for _ in range(2))
    wanted = divergence_metrics(LogRatios.of(current, rollout, mask), current, rollout)
    layout = TokenLayout(torch.tensor(mask.values), torch.repeat_interleave(torch.arange(3), torch.tensor(lengths)), 3)
    inputs = PolicyLossInputs(
        torch.tensor(current.values, requires_grad=True), torch.tensor(rollout.values), torch.ones(8).double(), layout
    )
    metrics = bypass_loss(inputs, LossConfig(loss_mode="bypass_mode")).token_metrics
    trained = torch.tensor(mask.values) > 0
    for name in ("kl", "k3_kl", "chi2_token"):
        found = metrics[f"rollout_corr/{name}"][trained].mean()
        assert float(found) == pytest.approx(wanted[f"rollout_corr/{name}"]), name
