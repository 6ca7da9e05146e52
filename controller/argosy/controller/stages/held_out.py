"""When the held-out prompts are answered: between two steps, or beside the step after (argosy.validation_overlap).

A pass beside training is of the weights of one step, so it ends before the servers get the next ones: `settle`. What it
found is reported as soon as it is known, for the step that it is of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from argosy.controller.context import RunContext
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.validation import ValidationResult, validate
from argosy.telemetry.traces import span
from argosy.types.records import Prompt

SECONDS = "timing_s/validation"
"""Metric of a pass: how long it took, whoever waited for it. What training waited is `timing_s/testing` of a step."""


class HeldOutPasses:
    """The validation passes of one run, one at a time.

    Args:
        ctx: The run.
        rollout: Who answers.
        prompts: The held-out ones; none: there are no passes.
        done: Told each pass that is complete.
    """

    def __init__(
        self,
        ctx: RunContext,
        rollout: RolloutStage,
        prompts: Sequence[Prompt],
        done: Callable[[ValidationResult], None],
    ) -> None:
        self._ctx = ctx
        self._rollout = rollout
        self.prompts = prompts
        self._done = done
        self.overlaps = ctx.config.argosy.validation_overlap and not ctx.config.trainer.val_only
        """Whether passes run beside training."""
        self.pending: int | None = None
        """The step of a pass that was begun, or is to be, and isn't reported."""
        self.first: ValidationResult | None = None
        self.last: ValidationResult | None = None
        self._running: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        """Whether a pass may use the servers."""

    def begin(self, step: int, tasks: asyncio.TaskGroup) -> None:
        """Start a pass over the weights of `step` in `tasks`, which its failure ends. None is under way.

        Where whole steps are generated (no stream) it waits until the servers have nothing else to do (`produced`): the
        trainer waits for the step's samples, and which of them share a batch must not depend on validation.
        """
        self.pending = step
        self._idle.clear()
        if self._ctx.config.argosy.streams:
            self._idle.set()
        self._running = tasks.create_task(self._when_idle(step), name="validate")

    def produced(self) -> None:
        """The samples of the next step are there."""
        self._idle.set()

    async def run(self, step: int) -> None:
        """A whole pass, while training waits. Raises as `validate` does."""
        self.pending = step
        started = time.perf_counter()
        with span("stage.validate", step=step):
            result = await validate(self._ctx, self._rollout, self.prompts, step)
        result = replace(result, metrics={**result.metrics, SECONDS: time.perf_counter() - started})
        self.first = self.first or result
        self.last = result
        self.pending = None
        self._done(result)

    async def _when_idle(self, step: int) -> None:
        await self._idle.wait()
        await self.run(step)

    @property
    def under_way(self) -> bool:
        """Whether there is a pass that nobody has waited for."""
        return self._running is not None

    async def settle(self) -> None:
        """Wait for the pass that was begun, if any. Raises its failure."""
        if self._running is not None:
            self._idle.set()
            running, self._running = self._running, None
            await running

    def cancel(self) -> None:
        """Give up the pass that was begun, if any; it stays pending."""
        if self._running is not None:
            self._running.cancel()
            self._running = None
