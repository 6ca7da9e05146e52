"""Learning-rate schedules: pure functions of the training step, so a resumed run is never one step off (case E5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from argosy.types.errors import ConfigError

WSD_DECAY_SHARE = 0.1
"""Share of the steps after warm-up over which "wsd" decays (Hu et al. 2024, MiniCPM, arXiv:2404.06395, §4.3)."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Linear warm-up from 0, then one of SHAPES. Moves once per training step, not per mini-batch.

    >>> schedule = Schedule(peak=1.0, shape="linear", warmup_steps=2, total_steps=6)
    >>> [schedule.rate(step) for step in range(7)]
    [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    peak: float
    """Learning rate at the end of the warm-up."""
    shape: str = "constant"
    """A key of SHAPES."""
    warmup_steps: int = 0
    """Steps over which the rate rises from 0; step 0 then trains at rate 0, as in transformers and verl."""
    total_steps: int | None = None
    """Steps of the whole run; "constant" needs none."""
    min_ratio: float = 0.0
    """Where a falling schedule ends, as a share of the peak."""
    cycles: float = 0.5
    """Cosine periods between warm-up and end."""

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ConfigError(f"unknown lr_scheduler_type {self.shape!r}; known: {', '.join(SHAPES)}")
        if self.shape != "constant" and (self.total_steps is None or self.total_steps < 1):
            raise ConfigError(
                f"lr_scheduler_type={self.shape} needs optim.total_training_steps (or trainer.total_training_steps), "
                f"got {self.total_steps}"
            )
        if self.warmup_steps < 0 or not 0.0 <= self.min_ratio <= 1.0:
            raise ConfigError(
                f"warm-up must be ≥ 0 steps and min_lr_ratio in [0, 1], got {self.warmup_steps} and {self.min_ratio}"
            )

    def rate(self, step: int) -> float:
        """Learning rate of training step `step`, from 0."""
        if step < self.warmup_steps:
            return self.peak * step / self.warmup_steps
        if self.total_steps is None:
            return self.peak
        length = max(self.total_steps - self.warmup_steps, 1)
        progress = min((step - self.warmup_steps) / length, 1.0)
        share = SHAPES[self.shape](progress, self.cycles)
        return self.peak * (self.min_ratio + (1.0 - self.min_ratio) * share)


def _constant(progress: float, cycles: float) -> float:
    return 1.0


def _linear(progress: float, cycles: float) -> float:
    return 1.0 - progress


def _cosine(progress: float, cycles: float) -> float:
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * 2.0 * cycles * progress)))


def _wsd(progress: float, cycles: float) -> float:
    return min(1.0, (1.0 - progress) / WSD_DECAY_SHARE)


SHAPES: dict[str, Callable[[float, float], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "wsd": _wsd,
}
"""lr_scheduler_type → share of the way from min to peak, given progress in [0, 1] and the cosine cycles."""
