"""The whole objective against a loop in float64: policy loss, KL, entropy, rollout weights, in shares of any cut."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from argosy.algorithms.aggregation import AGGREGATIONS
from argosy.algorithms.losses import LOSSES
from argosy.modeling.log_probs import TokenStats
from argosy.trainer.objective import Objective, TokenColumns, ValueColumns, check_loss, objective, value_objective
from argosy.types.errors import InvalidInputError
from argosy.types.records import GlobalNormalizer, LossConfig
from support.loss_references import reference_aggregate

NUMBER = st.floats(-3, 3, allow_subnormal=False)


@dataclass(frozen=True)
class Token:
    new: float
    old: float
    ref: float
    entropy: float
    advantage: float
    weight: float
    mask: int


LOG_PROB = st.floats(-4, -0.01)
TOKENS = st.builds(Token, LOG_PROB, LOG_PROB, LOG_PROB, st.floats(0, 5), NUMBER, st.floats(0, 2), st.integers(0, 1))
BATCHES = st.lists(st.lists(TOKENS, max_size=5), min_size=1, max_size=5)
Batch = list[list[Token]]


def loss_of(mode: str, **fields: Any) -> LossConfig:
    plain: dict[str, Any] = {"use_kl_loss": True, "kl_loss_coef": 0.3, "kl_loss_type": "k2", "entropy_coeff": 0.2}
    return LossConfig(**{**plain, "loss_agg_mode": mode, "loss_scale_factor": 7.0, **fields})


def parts(batch: Batch, loss: LossConfig) -> dict[str, float]:
    """Each term by its definition, over the whole mini-batch."""

    def average(value: Any) -> float:
        losses = [[value(token) for token in row] for row in batch]
        return reference_aggregate(losses, [[token.mask for token in row] for row in batch], loss)

    def policy(token: Token) -> float:
        ratio = math.exp(token.new - token.old)
        bounded = min(max(ratio, 1 - loss.clip_ratio_low), 1 + loss.clip_ratio_high)
        value = -min(ratio * token.advantage, bounded * token.advantage)
        value = min(value, -loss.clip_ratio_c * token.advantage) if token.advantage < 0 else value
        return token.weight * value

    found = {
        "actor/pg_loss": average(policy),
        "actor/kl_loss": average(lambda token: (token.new - token.ref) ** 2 / 2),
    }
    entropy = average(lambda token: token.entropy)
    found["actor/loss"] = (
        found["actor/pg_loss"] + loss.kl_loss_coef * found["actor/kl_loss"] - loss.entropy_coeff * entropy
    )
    return found


def normalizer_of(batch: Batch) -> GlobalNormalizer:
    counts = [sum(token.mask for token in row) for row in batch]
    return GlobalNormalizer(float(sum(counts)), float(sum(count > 0 for count in counts)))


def share(batch: Batch, loss: LossConfig, normalizer: GlobalNormalizer) -> tuple[Objective, Tensor]:
    """The share of some rows, and its gradient by their entropies."""
    tokens = [token for row in batch for token in row]

    def column(name: str) -> Tensor:
        return torch.tensor([getattr(token, name) for token in tokens], dtype=torch.float64)

    mask = column("mask")
    absurd = torch.where(mask > 0, column("weight"), float("nan"))
    entropy = column("entropy").requires_grad_()
    stats = TokenStats(column("new").requires_grad_(), entropy)
    columns = TokenColumns(column("advantage"), mask, column("old"), column("ref"), rollout_is_weights=absurd)
    owner = torch.tensor([number for number, row in enumerate(batch) for _ in row], dtype=torch.int64)
    result = objective(stats, columns, owner, len(batch), loss, normalizer)
    slopes = torch.autograd.grad(result.loss, [stats.log_probs, entropy])
    assert all(bool(slope.isfinite().all()) for slope in slopes)
    return result, slopes[1]


@settings(deadline=None, max_examples=60)
@given(batch=BATCHES, mode=st.sampled_from(sorted(AGGREGATIONS)), cut=st.integers(1, 5))
def test_shares_add_up_to_the_definition(batch: Batch, mode: str, cut: int) -> None:
    loss, normalizer = loss_of(mode), normalizer_of(batch)
    results = [share(batch[start : start + cut], loss, normalizer)[0] for start in range(0, len(batch), cut)]
    for name, expected in parts(batch, loss).items():
        assert sum(float(result.metrics[name]) for result in results) == pytest.approx(expected, rel=1e-6, abs=1e-7)
    kept = [token for row in batch for token in row if token.mask]
    found = sum(float(result.token_metrics["actor/entropy"]) for result in results)
    assert found == pytest.approx(math.fsum(token.entropy for token in kept), abs=1e-6)


NAN = math.nan


@pytest.mark.parametrize("mode", LOSSES)
@pytest.mark.parametrize(
    ("new", "old", "advantage", "mask"),
    [
        ([-1.0, -2.0, -3.0], [-1.1, NAN, -2.9], [1.0, NAN, -1.0], [1, 0, 1]),
        ([-1.0, -2.0, -3.0], [NAN, -math.inf, NAN], [NAN, 1.0, NAN], [0, 0, 0]),
        ([-0.1, -0.1, -0.1], [-1e3, -1e3, -1e3], [-1.0, -1.0, -1.0], [1, 1, 1]),
        ([-1e3, -1e3, -1e3], [-0.1, -0.1, -0.1], [1.0, -1.0, 0.0], [1, 1, 1]),
        ([0.0, 0.0, 0.0], [0.0, -5.0, 0.0], [1.0, -1.0, 0.0], [1, 1, 1]),
    ],
    ids=["masked-nan", "all-masked", "ratio-of-e1000", "ratio-of-e-1000", "certain"],
)
def test_b5_loss_and_gradient_are_finite(
    mode: str, new: list[float], old: list[float], advantage: list[float], mask: list[int]
) -> None:
    """Whatever lies where nothing is trained, and however far the policies are apart; only trained tokens are moved."""
    log_probs, masked = torch.tensor(new, requires_grad=True), torch.tensor(mask, dtype=torch.float32)
    spoilt = torch.where(masked > 0, 1.0, NAN)
    columns = TokenColumns(torch.tensor(advantage), masked, torch.tensor(old), torch.tensor(old), spoilt, masked)
    owner, normalizer = torch.zeros(3, dtype=torch.int64), GlobalNormalizer(float(sum(mask)), float(any(mask)))
    for agg in AGGREGATIONS:
        for kind in ("low_var_kl", "k1+"):
            loss = loss_of(agg, loss_mode=mode, kl_loss_type=kind, entropy_coeff=0.0)
            result = objective(TokenStats(log_probs), columns, owner, 1, loss, normalizer)
            (slope,) = torch.autograd.grad(result.loss, [log_probs])
            numbers = {"loss": result.loss, "slope": slope, **result.metrics, **result.token_metrics}
            assert not [name for name, value in numbers.items() if not bool(value.isfinite().all())]
            assert slope[masked == 0].tolist() == [0.0] * mask.count(0)


def test_the_entropy_bonus_pulls_every_trained_token_alike() -> None:
    row = [Token(-1.0, -1.0, -1.0, 2.0, 1.0, 1.0, mask) for mask in (1, 1, 0, 1)]
    _, slope = share([row], loss_of("token-mean"), GlobalNormalizer(3.0, 1.0))
    assert slope.tolist() == pytest.approx([-0.2 / 3, -0.2 / 3, 0.0, -0.2 / 3])


def test_untrained_tokens_may_hold_anything() -> None:
    """NaN in every column of a masked token reaches neither value nor gradient."""
    nan = float("nan")
    row = [Token(-1.0, -1.2, -0.9, 1.0, 0.5, 1.0, 1), Token(-2.0, nan, nan, 1.0, nan, nan, 0)]
    result, _ = share([row], loss_of("seq-mean-token-mean"), GlobalNormalizer(1.0, 1.0))
    assert all(math.isfinite(float(value)) for value in (*result.metrics.values(), *result.token_metrics.values()))


VALUES = st.lists(st.lists(st.tuples(NUMBER, NUMBER, NUMBER, st.integers(0, 1)), max_size=5), min_size=1, max_size=5)


@settings(deadline=None, max_examples=60)
@given(batch=VALUES, mode=st.sampled_from(sorted(AGGREGATIONS)), cut=st.integers(1, 5))
def test_value_shares_add_up_to_the_definition(
    batch: list[list[tuple[float, float, float, int]]], mode: str, cut: int
) -> None:
    """(V, V_old, G, mask) of each token; NaN in the columns of masked ones."""
    loss = LossConfig("value", loss_agg_mode=mode, loss_scale_factor=7.0, options={"cliprange_value": 0.4})
    masks = [[token[3] for token in row] for row in batch]
    counts = [sum(row) for row in masks]
    normalizer = GlobalNormalizer(float(sum(counts)), float(sum(count > 0 for count in counts)))
    losses = []
    for row in batch:
        clipped = [old + min(max(value - old, -0.4), 0.4) for value, old, _, _ in row]
        losses.append([max((v - g) ** 2, (c - g) ** 2) / 2 for (v, _, g, _), c in zip(row, clipped, strict=True)])
    total = 0.0
    for start in range(0, len(batch), cut):
        rows = batch[start : start + cut]
        flat = torch.tensor([token for row in rows for token in row], dtype=torch.float64).reshape(-1, 4)
        values, old, returns, mask = flat.unbind(1)
        hidden = torch.where(mask > 0, 0.0, float("nan"))
        owner = torch.tensor([number for number, row in enumerate(rows) for _ in row], dtype=torch.int64)
        values = values.clone().requires_grad_()
        result = value_objective(
            values, ValueColumns(returns + hidden, mask, old + hidden), owner, len(rows), loss, normalizer
        )
        (slope,) = torch.autograd.grad(result.loss, values)
        assert bool(slope.isfinite().all())
        assert not bool(slope[mask == 0].any())
        total += float(result.metrics["critic/vf_loss"])
    assert total == pytest.approx(reference_aggregate(losses, masks, loss), rel=1e-9, abs=1e-12)


def test_without_old_values_nothing_is_clipped() -> None:
    values = torch.tensor([3.0], requires_grad=True)
    columns = ValueColumns(torch.tensor([1.0]), torch.ones(1), None)
    owner = torch.zeros(1, dtype=torch.int64)
    result = value_objective(values, columns, owner, 1, LossConfig("value"), GlobalNormalizer(1.0, 1.0))
    (slope,) = torch.autograd.grad(result.loss, values)
    assert (float(result.loss.detach()), slope.item()) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (LossConfig("sapo", options={"tau_pos": -1.0}), "tau_pos must be above 0, got -1.0"),
        (LossConfig("vanilla", options={"tau_pos": 1.0}), "no option 'tau_pos'"),
        (LossConfig("value", options={"cliprange_value": 0.0}), "cliprange_value must be above 0, got 0.0"),
        (LossConfig("value", options={"clip": 0.5}), "no option 'clip'; it has: cliprange_value"),
    ],
)
def test_senseless_options_are_refused_before_anything_is_computed(loss: LossConfig, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        check_loss(loss)
