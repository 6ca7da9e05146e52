"""Every policy loss against its float64 reference: values, gradients, and invariance to a mini-batch's layout."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.algorithms import catalog
from argosy.algorithms.aggregation import AGGREGATIONS
from argosy.algorithms.kl import ESTIMATORS
from argosy.algorithms.losses import LOSSES, OPTIONS, WHOLE_BATCH, PolicyLossInputs, get_loss
from argosy.types.records import LossConfig
from support.loss_references import REFERENCES, Token, Tokens, reference_aggregate, reference_losses
from support.losses import CONFIGS, STOPPED, inputs_of, normalizer_of, result_of, sequences, share_of

MODES = sorted(AGGREGATIONS)


def masks_of(batch: list[list[Token]]) -> list[list[int]]:
    return [[token.mask for token in sequence] for sequence in batch]


def test_each_loss_has_a_catalog_entry_a_reference_and_a_place_here() -> None:
    assert list(LOSSES) == list(catalog.LOSSES) == list(REFERENCES)
    assert {config.loss_mode for config in CONFIGS.values()} == set(LOSSES)
    assert OPTIONS.keys() | WHOLE_BATCH.keys() <= LOSSES.keys()
    assert list(ESTIMATORS) == list(catalog.KL)
    assert list(AGGREGATIONS) == list(catalog.AGGREGATION)
    assert {info.aggregation for info in catalog.LOSSES.values()} <= AGGREGATIONS.keys()


@pytest.mark.parametrize("name", CONFIGS)
@settings(deadline=None, max_examples=25)
@given(batch=sequences())
def test_values_equal_the_reference(name: str, batch: list[list[Token]]) -> None:
    inputs, result = result_of(batch, CONFIGS[name])
    found = torch.where(inputs.layout.mask > 0, result.losses, 0.0).tolist()
    expected = list(itertools.chain.from_iterable(reference_losses(batch, CONFIGS[name])))
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-9)
    for value in result.token_metrics.values():
        assert value.shape == result.losses.shape
        assert not value.requires_grad


STEP = 1e-6
SMOOTH: list[list[Token]] = [
    # Ratios 1.1, 0.9 (inside), 1.6 and 0.5 (outside) with both signs; far from every kink. Marked and masked ones too.
    [Token(-1.0, -1.0 - np.log(1.1), 1.5), Token(-2.0, -2.0 - np.log(1.6), 1.5), Token(-0.5, -0.5, 1.5, 0)],
    [Token(-1.0, -1.0 - np.log(0.5), 1.5), Token(-0.3, -0.3 - np.log(0.9), 1.5, 1, True)],
    [Token(-0.7, -0.7 - np.log(0.9), -0.8), Token(-1.2, -1.2 - np.log(0.5), -0.8)],
    [Token(-3.0, -3.0 - np.log(1.6), -0.8), Token(-0.2, -0.2 - np.log(1.1), -0.8, 1, True)],
    [Token(-0.4, -0.4 - np.log(4.0), -0.8)],  # beyond the dual clip
]


def objective_of(batch: list[list[Token]], config: LossConfig) -> float:
    return reference_aggregate(reference_losses(batch, config), masks_of(batch), config)


def numeric_gradient(batch: list[list[Token]], config: LossConfig) -> list[list[float]]:
    """Central differences of the reference, with what a stop-gradient sees held still."""
    still = [[dataclasses.replace(token, frozen=token.new) for token in sequence] for sequence in batch]
    found: list[list[float]] = []
    for row, sequence in enumerate(still):
        found.append([])
        for place, token in enumerate(sequence):
            ends = []
            for sign in (1.0, -1.0):
                moved = [list(tokens) for tokens in still]
                moved[row][place] = dataclasses.replace(token, new=token.new + sign * STEP)
                ends.append(objective_of(moved, config))
            found[-1].append((ends[0] - ends[1]) / (2 * STEP))
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_are_those_of_the_reference(name: str, mode: str) -> None:
    config = dataclasses.replace(CONFIGS[name], loss_agg_mode=mode)
    total, gradient = share_of(SMOOTH, config, normalizer_of(SMOOTH))
    assert total == pytest.approx(objective_of(SMOOTH, config))
    for found, expected in zip(gradient, numeric_gradient(SMOOTH, config), strict=True):
        assert found == pytest.approx(expected, abs=2e-8)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in STOPPED])
def test_gradcheck(name: str) -> None:
    """Where no gradient is stopped, torch's own check holds for every token's loss."""
    inputs = inputs_of(SMOOTH)

    def call(log_probs: torch.Tensor) -> torch.Tensor:
        moved = dataclasses.replace(inputs, log_probs=log_probs)
        return get_loss(CONFIGS[name].loss_mode)(moved, CONFIGS[name]).losses

    assert torch.autograd.gradcheck(call, (inputs.log_probs,))


def test_gspos_gradient_is_that_of_its_sequence_objective() -> None:
    """Eq. 5 with eq. 7, differentiated as it stands: averaged over sequences, GSPO-token is GSPO."""
    config = dataclasses.replace(CONFIGS["gspo"], loss_agg_mode="seq-mean-token-mean")
    inputs = inputs_of(SMOOTH)

    def objective(log_probs: torch.Tensor) -> torch.Tensor:
        total = log_probs.new_zeros(())
        for row, sequence in enumerate(SMOOTH):
            places = torch.nonzero((inputs.layout.owner == row) & (inputs.layout.mask > 0))[:, 0]
            ratio = (log_probs[places] - inputs.old_log_probs[places]).mean().exp()
            advantage = sequence[0].advantage
            bounded = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
            total = total - torch.minimum(ratio * advantage, bounded * advantage) / len(SMOOTH)
        return total

    (expected,) = torch.autograd.grad(objective(inputs.log_probs), inputs.log_probs)
    _, gradient = share_of(SMOOTH, config, normalizer_of(SMOOTH))
    assert list(itertools.chain.from_iterable(gradient)) == pytest.approx(expected.tolist(), abs=1e-12)


def padded(sequence: Tokens, amount: int) -> list[Token]:
    """The sequence with masked tokens before, between and after, whose numbers are absurd."""
    junk = Token(-9.0, -0.1, 7.0, mask=0, marked=True)
    mixed = [part for token in sequence for part in (token, *[junk] * (amount % 2))]
    return [junk] * amount + mixed + [junk] * amount


@pytest.mark.parametrize("name", CONFIGS)
@settings(deadline=None, max_examples=24)
@given(
    mode=st.sampled_from(MODES),
    batch=sequences(),
    cut=st.integers(1, 5),
    padding=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_shares_add_up_in_any_layout(
    name: str, mode: str, batch: list[list[Token]], cut: int, padding: int, seed: int
) -> None:
    """Padding, order, micro-batches and ranks: the sum of the shares and each token's gradient stay the same."""
    config = dataclasses.replace(CONFIGS[name], loss_agg_mode=mode)
    normalizer = normalizer_of(batch)
    total, gradient = share_of(batch, config, normalizer)
    assert total == pytest.approx(objective_of(batch, config), rel=1e-9, abs=1e-9)

    order = np.random.default_rng(seed).permutation(len(batch)).tolist()
    found_total = 0.0
    for start in range(0, len(batch), cut):
        rows = order[start : start + cut]
        part = [padded(batch[row], padding) for row in rows]
        share, moved = share_of(part, config, normalizer)
        found_total += share
        for row, tokens, values in zip(rows, part, moved, strict=True):
            kept = [value for token, value in zip(tokens, values, strict=True) if token.mask]
            dropped = [value for token, value in zip(tokens, values, strict=True) if not token.mask]
            wanted = [value for token, value in zip(batch[row], gradient[row], strict=True) if token.mask]
            assert kept == pytest.approx(wanted, rel=1e-9, abs=1e-12)
            assert dropped == [0.0] * len(dropped)
    assert found_total == pytest.approx(total, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", CONFIGS)
@settings(deadline=None, max_examples=10)
@given(batch=sequences(), seed=st.integers(0, 99))
def test_packing_tokens_in_any_order_changes_nothing(name: str, batch: list[list[Token]], seed: int) -> None:
    """Owner says whose a token is; where it lies among the others doesn't matter."""
    inputs, result = result_of(batch, CONFIGS[name])
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(result.losses)))
    layout = dataclasses.replace(inputs.layout, mask=inputs.layout.mask[order], owner=inputs.layout.owner[order])
    assert inputs.mini_batch_column is not None
    moved = PolicyLossInputs(
        inputs.log_probs[order], inputs.old_log_probs[order], inputs.advantages[order], layout,
        inputs.mini_batch_column[order],
    )  # fmt: skip
    found = get_loss(CONFIGS[name].loss_mode)(moved, CONFIGS[name])
    torch.testing.assert_close(found.losses, result.losses[order])
    for metric, value in result.token_metrics.items():
        torch.testing.assert_close(found.token_metrics[metric], value[order])


ZERO = [name for name, config in CONFIGS.items() if config.loss_mode not in ("kl_cov", "dro")]


@pytest.mark.parametrize("name", ZERO)
def test_zero_advantages_are_exactly_zero(name: str) -> None:
    """What the trainer relies on when it leaves such rows out."""
    flat = [[dataclasses.replace(token, advantage=0.0) for token in sequence] for sequence in SMOOTH]
    total, gradient = share_of(flat, CONFIGS[name], normalizer_of(flat))
    assert total == 0.0
    assert not any(itertools.chain.from_iterable(gradient))


@pytest.mark.parametrize("name", ["kl_cov", "dro"])
def test_penalties_stay_where_advantages_are_zero(name: str) -> None:
    flat = [[dataclasses.replace(token, advantage=0.0) for token in sequence] for sequence in SMOOTH]
    total, gradient = share_of(flat, CONFIGS[name], normalizer_of(flat))
    assert total > 0
    assert any(itertools.chain.from_iterable(gradient))


@pytest.mark.parametrize("name", CONFIGS)
def test_absurd_ratios_stay_finite(name: str) -> None:
    for gap, advantage in itertools.product((300.0, -300.0), (1.0, -1.0)):
        batch = [[Token(-1.0 - max(gap, 0.0), -1.0 - max(-gap, 0.0), advantage)]]
        total, gradient = share_of(batch, CONFIGS[name], normalizer_of(batch))
        assert np.isfinite(total)
        assert np.isfinite(gradient).all()
