from __future__ import annotations

import pytest
import torch
from torch import nn

from argosy.modeling.loading import ModelSource
from argosy.trainer.optimizer import MasterOptimizer
from argosy.trainer.options import OptimizerOptions, TrainerOptions
from argosy.trainer.schedule import Schedule
from argosy.types.errors import ConfigError, InternalError


def optimizer_over(*values: float, **options: float) -> tuple[MasterOptimizer, nn.Parameter]:
    parameter = nn.Parameter(torch.tensor(values, dtype=torch.float32))
    settings = OptimizerOptions(Schedule(1.0), weight_decay=0.0, **options)  # type: ignore[arg-type]
    return MasterOptimizer({"w": parameter}, settings), parameter


def give(parameter: nn.Parameter, *gradient: float) -> None:
    parameter.grad = torch.tensor(gradient, dtype=torch.float32)


def test_e7_a_thousand_small_steps_move_a_float32_master_and_not_a_bfloat16_weight() -> None:
    """0.5 with a constant update of -1e-4 (Adam with a constant gradient moves by lr): about 0.4 after 1000 steps."""
    master, parameter = optimizer_over(0.5)
    for _ in range(1000):
        give(parameter, 1.0)
        assert master.step(1e-4).changed_share == 1.0
    assert parameter.item() == pytest.approx(0.4, abs=1e-3)

    half = nn.Parameter(torch.tensor([0.5], dtype=torch.bfloat16))
    swallowed = MasterOptimizer({"w": half}, OptimizerOptions(Schedule(1.0), weight_decay=0.0))
    for _ in range(50):
        half.grad = torch.ones_like(half)
        assert swallowed.step(1e-4).changed_share == 0.0
    assert half.item() == 0.5


def test_e7_bfloat16_master_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match="bfloat16 would lose small updates"):
        TrainerOptions(ModelSource("m", dtype="bfloat16"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_h9_a_norm_that_is_not_finite_skips_the_step_and_is_shown_as_it_is(bad: float) -> None:
    optimizer, parameter = optimizer_over(1.0, 2.0)
    give(parameter, 1.0, 1.0)
    optimizer.step(0.1)
    before, state = parameter.detach().clone(), {k: v.clone() for k, v in optimizer.state_tensors().items()}
    give(parameter, 1.0, bad)
    outcome = optimizer.step(0.1)
    assert outcome.skipped
    assert not torch.isfinite(torch.tensor(outcome.grad_norm))
    assert torch.equal(parameter.detach(), before)
    assert all(torch.equal(value, state[key]) for key, value in optimizer.state_tensors().items())
    assert (optimizer.skipped_steps, optimizer.consecutive_skips, parameter.grad) == (1, 1, None)


def test_h9_repeated_skips_end_the_run_and_a_good_step_starts_the_count_anew() -> None:
    optimizer, parameter = optimizer_over(1.0, max_skipped_steps=2)
    for gradient in (float("nan"), float("nan"), 1.0, float("nan"), float("nan")):
        give(parameter, gradient)
        optimizer.step(0.1)
    assert optimizer.skipped_steps == 4
    give(parameter, float("nan"))
    with pytest.raises(InternalError, match="nan in 3 optimizer steps running"):
        optimizer.step(0.1)


def test_h9_learning_rate_zero_is_seen_as_no_change() -> None:
    optimizer, parameter = optimizer_over(1.0)
    give(parameter, 1.0)
    outcome = optimizer.step(0.0)
    assert (outcome.changed_share, outcome.grad_norm, outcome.skipped) == (0.0, 1.0, False)


def test_clipping_scales_the_gradient_to_the_bound_and_reports_the_norm_before() -> None:
    moments = []
    for clip in (1.0, 0.0):
        optimizer, parameter = optimizer_over(1.0, 1.0, grad_clip=clip)
        give(parameter, 3.0, 4.0)
        assert optimizer.step(0.1).grad_norm == pytest.approx(5.0)
        moments.append(optimizer.state_tensors()["exp_avg/w"] / 0.1)
    torch.testing.assert_close(moments[0], torch.tensor([0.6, 0.8]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(moments[1], torch.tensor([3.0, 4.0]), rtol=1e-4, atol=1e-5)


def test_steps_equal_adamw_by_the_paper() -> None:
    """Loshchilov & Hutter 2019, algorithm 2, in Python floats."""
    parameter = nn.Parameter(torch.tensor([0.7], dtype=torch.float64))
    optimizer = MasterOptimizer(
        {"w": parameter}, OptimizerOptions(Schedule(1.0), weight_decay=0.1, betas=(0.8, 0.9), eps=1e-6, grad_clip=0.0)
    )
    weight, first, second = 0.7, 0.0, 0.0
    for step, gradient in enumerate([0.3, -0.2, 0.5, 0.1], start=1):
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step(0.01 * step)
        first = 0.8 * first + 0.2 * gradient
        second = 0.9 * second + 0.1 * gradient**2
        direction = (first / (1 - 0.8**step)) / ((second / (1 - 0.9**step)) ** 0.5 + 1e-6)
        weight = weight * (1 - 0.01 * step * 0.1) - 0.01 * step * direction
    assert parameter.item() == pytest.approx(weight, rel=1e-9)


def test_a_parameter_that_no_row_reached_still_follows_its_momentum() -> None:
    optimizer, parameter = optimizer_over(1.0)
    give(parameter, 1.0)
    optimizer.step(0.1)
    before = parameter.item()
    outcome = optimizer.step(0.1)
    assert outcome.grad_norm == 0.0
    assert parameter.item() < before


def test_reserved_memory_changes_no_step_and_keeps_the_gradients_in_place() -> None:
    steps = []
    for reserved in (False, True):
        optimizer, parameter = optimizer_over(0.5, -0.25)
        if reserved:
            optimizer.reserve()
            optimizer.reserve()
        gradient = parameter.grad
        for slope in (1.0, -3.0, 0.5):
            if gradient is None:
                give(parameter, slope, 1.0)
            else:
                gradient.copy_(torch.tensor([slope, 1.0]))
            optimizer.step(1e-2)
        if reserved:
            assert parameter.grad is gradient
            assert gradient is not None
            assert not bool(gradient.any())
        steps.append((parameter.detach().clone(), optimizer.state_tensors()))
    assert torch.equal(steps[0][0], steps[1][0])
    assert steps[0][1].keys() == steps[1][1].keys()
    assert all(torch.equal(value, steps[1][1][name]) for name, value in steps[0][1].items())
    assert {name: tuple(value.shape) for name, value in steps[1][1].items()} == optimizer.expected_state()
