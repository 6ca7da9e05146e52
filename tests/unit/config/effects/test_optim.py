"""`actor_rollout_ref.actor.optim.*`: what one weight does in the optimizer that the trainer makes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from argosy.config import Config, load
from argosy.config.validate import find_problems
from argosy.controller.prepare import PreparedRun
from argosy.trainer.build import options_from
from argosy.trainer.optimizer import MasterOptimizer
from argosy.types.errors import ConfigError

BASE = Config().with_values({
    "actor_rollout_ref.model.path": "m", "actor_rollout_ref.actor.optim.lr": 0.5,
    "actor_rollout_ref.actor.optim.weight_decay": 0.0, "trainer.total_training_steps": 10,
})  # fmt: skip


def weight_after(config: Config, *gradients: float) -> float:
    """A weight that starts at 1, after one optimizer step per gradient."""
    weight = nn.Parameter(torch.ones(1))
    options = options_from(config).optimizer
    optimizer = MasterOptimizer({"weight": weight}, options)
    for step, gradient in enumerate(gradients):
        weight.grad = torch.tensor([gradient])
        optimizer.step(options.schedule.rate(step))
    return weight.item()


def rates(config: Config) -> list[float]:
    """Learning rates of steps 0 to 10."""
    schedule = options_from(config).optimizer.schedule
    return [round(schedule.rate(step), 4) for step in range(11)]


def test_lr() -> None:
    changed = BASE.with_values({"actor_rollout_ref.actor.optim.lr": 0.25})
    assert weight_after(BASE, 1.0) == pytest.approx(0.5)
    assert weight_after(changed, 1.0) == pytest.approx(0.75)


def test_weight_decay() -> None:
    changed = BASE.with_values({"actor_rollout_ref.actor.optim.weight_decay": 0.2})
    assert (weight_after(BASE, 0.0), weight_after(changed, 0.0)) == pytest.approx((1.0, 0.9))


def test_betas() -> None:
    """Without momentum a gradient of 0 moves nothing."""
    changed = BASE.with_values({"actor_rollout_ref.actor.optim.betas": [0.0, 0.999]})
    assert weight_after(changed, 1.0, 0.0) == pytest.approx(0.5)
    assert weight_after(BASE, 1.0, 0.0) < 0.4
    second = BASE.with_values({"actor_rollout_ref.actor.optim.betas": [0.9, 0.5]})
    assert weight_after(second, 1.0, 0.0) != pytest.approx(weight_after(BASE, 1.0, 0.0))


def test_eps() -> None:
    """The step is lr · g / (|g| + ε)."""
    changed = BASE.with_values({"actor_rollout_ref.actor.optim.eps": 1.0})
    assert weight_after(changed, 1.0) == pytest.approx(0.75)


@pytest.mark.parametrize("key", ["actor_rollout_ref.actor.grad_clip", "actor_rollout_ref.actor.optim.clip_grad"])
def test_grad_clip(key: str) -> None:
    """With ε = 1 the step tells how large the clipped gradient was. The newer name sets the same."""
    large = BASE.with_values({"actor_rollout_ref.actor.optim.eps": 1.0})
    arguments = [f"{key}=0.25", "actor_rollout_ref.actor.optim.lr=0.5", "actor_rollout_ref.actor.optim.eps=1.0"]
    changed = load([*arguments, "actor_rollout_ref.actor.optim.weight_decay=0"])
    assert weight_after(large, 3.0) == pytest.approx(1 - 0.5 * 1.0 / 2.0)
    assert weight_after(changed, 3.0) == pytest.approx(1 - 0.5 * 0.25 / 1.25)


def test_lr_warmup_steps() -> None:
    changed = BASE.with_values({"actor_rollout_ref.actor.optim.lr_warmup_steps": 4})
    assert rates(BASE)[:5] == [0.5] * 5
    assert rates(changed)[:6] == [0.0, 0.125, 0.25, 0.375, 0.5, 0.5]


def test_lr_warmup_steps_ratio() -> None:
    changed = BASE.with_values({"actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.2})
    assert rates(changed)[:4] == [0.0, 0.25, 0.5, 0.5]


@pytest.mark.parametrize(
    "key", ["actor_rollout_ref.actor.optim.lr_scheduler_type", "actor_rollout_ref.actor.optim.warmup_style"]
)
def test_lr_scheduler_type(key: str) -> None:
    """By both names; each shape has its own middle."""
    middles = {}
    for shape in ("constant", "linear", "cosine", "wsd"):
        changed = load([f"{key}={shape}", "actor_rollout_ref.actor.optim.lr=0.5", "trainer.total_training_steps=10"])
        middles[shape] = rates(changed)[7:]
    assert middles == {
        "constant": [0.5, 0.5, 0.5, 0.5], "linear": [0.15, 0.1, 0.05, 0.0],
        "cosine": [0.1031, 0.0477, 0.0122, 0.0], "wsd": [0.5, 0.5, 0.5, 0.0],
    }  # fmt: skip


def test_min_lr_ratio() -> None:
    linear = BASE.with_values({"actor_rollout_ref.actor.optim.lr_scheduler_type": "linear"})
    changed = linear.with_values({"actor_rollout_ref.actor.optim.min_lr_ratio": 0.5})
    assert (rates(linear)[10], rates(changed)[10]) == (0.0, 0.25)


def test_num_cycles() -> None:
    cosine = BASE.with_values({"actor_rollout_ref.actor.optim.lr_scheduler_type": "cosine"})
    changed = cosine.with_values({"actor_rollout_ref.actor.optim.num_cycles": 1.0})
    assert (rates(cosine)[10], rates(changed)[10]) == (0.0, 0.5)
    assert rates(changed)[5] == 0.0


def test_total_training_steps(job: Config) -> None:
    """The schedule's length; without it the run's own length, which the controller fills in."""
    linear = BASE.with_values({"actor_rollout_ref.actor.optim.lr_scheduler_type": "linear"})
    changed = linear.with_values({"actor_rollout_ref.actor.optim.total_training_steps": 5})
    assert (rates(linear)[5], rates(changed)[5]) == (0.25, 0.0)
    filled = PreparedRun(job).config.actor_rollout_ref.actor.optim.total_training_steps
    kept = PreparedRun(job.with_values({"actor_rollout_ref.actor.optim.total_training_steps": 7})).config
    assert (filled, kept.actor_rollout_ref.actor.optim.total_training_steps) == (2, 7)


def test_optimizer() -> None:
    """verl's spellings of AdamW are the same; one without its library is refused when the trainer is made."""
    path = "actor_rollout_ref.actor.optim.optimizer"
    assert weight_after(BASE.with_values({path: "adam"}), 1.0) == weight_after(BASE, 1.0)
    found = find_problems(BASE.with_values({path: "AdamW8bit"}), files=False)
    assert [text for text in found if "bitsandbytes.optim" in text]
    options = options_from(BASE.with_values({path: "AdamW8bit"})).optimizer
    with pytest.raises(ConfigError, match=r"unknown optimizer AdamW8bit of torch\.optim"):
        MasterOptimizer({"weight": nn.Parameter(torch.ones(1))}, options)


def test_optimizer_impl() -> None:
    changed = BASE.with_values({
        "actor_rollout_ref.actor.optim.optimizer": "AdamW8bit",
        "actor_rollout_ref.actor.optim.optimizer_impl": "bitsandbytes.optim",
    })  # fmt: skip
    assert options_from(changed).optimizer.optimizer_impl == "bitsandbytes.optim"
    assert not [text for text in find_problems(changed, files=False) if "optimizer" in text]


def test_override_optimizer_config() -> None:
    """It goes over the keys of the section; the learning rate is the schedule's."""
    path = "actor_rollout_ref.actor.optim.override_optimizer_config"
    assert weight_after(BASE.with_values({path: {"eps": 1.0}}), 1.0) == pytest.approx(0.75)
    assert [text for text in find_problems(BASE.with_values({path: {"lr": 1.0}}), files=False) if "schedule" in text]
    with pytest.raises(ConfigError, match="no setting 'momentum'"):
        weight_after(BASE.with_values({path: {"momentum": 0.9}}), 1.0)


def test_no_decay_1d() -> None:
    changed = BASE.with_values({"actor_rollout_ref.actor.optim.weight_decay": 0.2, "argosy.trainer.no_decay_1d": True})
    assert weight_after(changed, 0.0) == 1.0
