from __future__ import annotations

import doctest
import math

import pytest

import argosy.trainer.schedule as module
from argosy.trainer.schedule import Schedule
from argosy.types.errors import ConfigError


def test_documented_example_holds() -> None:
    assert doctest.testmod(module).failed == 0


def test_constant_with_warmup_rises_from_zero_and_stays() -> None:
    rates = [Schedule(2.0, warmup_steps=4).rate(step) for step in range(7)]
    assert rates == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_cosine_ends_at_the_minimum_and_stays_there() -> None:
    schedule = Schedule(1.0, "cosine", warmup_steps=4, total_steps=14, min_ratio=0.1)
    assert schedule.rate(4) == pytest.approx(1.0)
    assert schedule.rate(9) == pytest.approx(0.1 + 0.9 * 0.5)
    assert schedule.rate(7) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 0.3)))
    assert [schedule.rate(step) for step in (14, 15, 1000)] == pytest.approx([0.1] * 3)


def test_wsd_is_stable_until_the_last_tenth() -> None:
    schedule = Schedule(1.0, "wsd", warmup_steps=10, total_steps=110)
    assert {schedule.rate(step) for step in range(10, 100)} == {1.0}
    assert [schedule.rate(step) for step in (105, 110)] == pytest.approx([0.5, 0.0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": "cosin"}, "known: constant, linear, cosine, wsd"),
        ({"shape": "linear"}, r"needs optim\.total_training_steps"),
        ({"warmup_steps": -2}, "got -2"),
        ({"min_ratio": 1.5}, r"1\.5"),
    ],
)
def test_senseless_schedules_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Schedule(1.0, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("warmup", "total", "floor", "cycles"), [(0, 7, 0.0, 0.5), (4, 20, 0.1, 0.5), (3, 11, 0.2, 1.5)]
)
def test_shapes_are_those_of_transformers(warmup: int, total: int, floor: float, cycles: float) -> None:
    """Its schedulers, stepped, against ours as functions of the step."""
    import torch
    from transformers import optimization

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=3.0)
    theirs = {
        "constant": optimization.get_constant_schedule_with_warmup(optimizer, warmup),
        "linear": optimization.get_linear_schedule_with_warmup(optimizer, warmup, total),
        "cosine": optimization.get_cosine_with_min_lr_schedule_with_warmup(
            optimizer, warmup, total, num_cycles=cycles, min_lr_rate=floor
        ),
    }
    for shape, scheduler in theirs.items():
        minimum = floor if shape == "cosine" else 0.0
        ours = Schedule(3.0, shape, warmup, total, min_ratio=minimum, cycles=cycles)
        factor = scheduler.lr_lambdas[0]
        expected = [3.0 * factor(step) for step in range(total + 1)]
        assert [ours.rate(step) for step in range(total + 1)] == pytest.approx(expected), shape
