from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from argosy.algorithms.kl import ESTIMATORS, kl_estimate
from argosy.algorithms.kl_reward import kl_penalty
from argosy.types.errors import InvalidInputError

DIFFERENCES = [-3.0, -0.5, 0.0, 0.25, 2.0]


def reference(difference: float, kind: str) -> float:
    return {
        "k1": difference,
        "kl": difference,
        "abs": math.fabs(difference),
        "k2": difference * difference / 2,
        "mse": difference * difference / 2,
        "k3": min(math.exp(-difference) + difference - 1, 10.0),
        "low_var_kl": min(math.exp(-difference) + difference - 1, 10.0),
    }[kind]


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.full((len(DIFFERENCES),), -1.5, dtype=torch.float64)
    return (base + torch.tensor(DIFFERENCES, dtype=torch.float64)).requires_grad_(), base


@pytest.mark.parametrize("kind", sorted(ESTIMATORS))
@pytest.mark.parametrize("suffix", ["", "+"])
def test_values_are_the_formulas_and_those_of_the_reward_form(kind: str, suffix: str) -> None:
    log_probs, base = pair()
    expected = [reference(difference, kind) for difference in DIFFERENCES]
    found = kl_estimate(log_probs, base, kind + suffix).detach()
    assert found.tolist() == pytest.approx(expected)
    np.testing.assert_allclose(kl_penalty(log_probs.detach().numpy(), base.numpy(), kind), expected)


@pytest.mark.parametrize("kind", sorted(ESTIMATORS))
def test_the_plus_form_takes_k2s_gradient(kind: str) -> None:
    log_probs, base = pair()
    (gradient,) = torch.autograd.grad(kl_estimate(log_probs, base, kind + "+").sum(), log_probs)
    assert gradient.tolist() == pytest.approx(DIFFERENCES)


@pytest.mark.parametrize("kind", sorted(ESTIMATORS))
def test_gradcheck(kind: str) -> None:
    """Away from 0, where |d| has its kink, and from k3's bound."""
    base = torch.full((4,), -1.5, dtype=torch.float64)
    log_probs = (base + torch.tensor([-1.5, -0.5, 0.25, 2.0], dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda given: kl_estimate(given, base, kind), (log_probs,))


def test_k3s_gradient_and_its_bounds() -> None:
    log_probs, base = pair()
    (gradient,) = torch.autograd.grad(kl_estimate(log_probs, base, "k3").sum(), log_probs)
    # e^3 + (-3) - 1 = 16.09 is over the bound of 10, where the gradient ends.
    assert gradient.tolist() == pytest.approx([0.0, *(1 - math.exp(-d) for d in DIFFERENCES[1:])])
    far = kl_estimate(torch.tensor([-500.0]), torch.tensor([0.0]), "k3")
    assert far.item() == 10.0


def test_an_unknown_estimator_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"unknown kl_loss_type 'k4'; known: kl, k1"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")
