"""Learn from a step: log-probs and values, advantages, updates, and what became of its samples."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from argosy.algorithms.kl_reward import KLController
from argosy.controller.context import RunContext
from argosy.controller.producing import StepRecord
from argosy.controller.stages import assemble
from argosy.controller.stages.reference import add_log_probs
from argosy.controller.stages.update import update_policy
from argosy.controller.stages.values import compute_values, update_critic
from argosy.controller.timing import timed
from argosy.telemetry.traces import span
from argosy.types.batch import TrajectoryBatch
from argosy.types.ids import SampleId
from argosy.types.records import StepResult


class Learner:
    """What the trainer side of a step is made of. `stage`: Told of each stage of a step as it begins."""

    def __init__(self, ctx: RunContext, stage: Callable[[int, str], None]) -> None:
        self.kl = _kl_controller(ctx)
        """Of KL in the reward; its coefficient may change with each step."""
        self._ctx = ctx
        self._stage = stage

    async def prepare(
        self, record: StepRecord, timing: dict[str, float]
    ) -> tuple[TrajectoryBatch, dict[str, float], assemble.Fates]:
        """Log-probs and advantages of a scored step, and what becomes of its samples."""
        config = self._ctx.config
        batch, metrics = await asyncio.to_thread(assemble.build, config, record)
        batch = await self._ask_models(batch, record.step, timing)
        batch, more, fates = await asyncio.to_thread(assemble.finish, config, record, batch, self.kl, timing)
        return batch, metrics | more, fates

    async def _ask_models(self, batch: TrajectoryBatch, step: int, timing: dict[str, float]) -> TrajectoryBatch:
        """The batch with log-probs and, with a critic, values: by other processes, so at one time."""

        async def log_probs() -> TrajectoryBatch:
            self._stage(step, "ref")
            with span("stage.log_probs", step=step):
                return await add_log_probs(self._ctx, batch, timing)

        async def values() -> Mapping[SampleId, Any]:
            self._stage(step, "values")
            with timed(timing, "values"), span("stage.values", step=step):
                return await compute_values(self._ctx, batch)

        if self._ctx.services.critic is None:
            return await log_probs()
        async with asyncio.TaskGroup() as tasks:
            asked, valued = tasks.create_task(log_probs()), tasks.create_task(values())
        return asked.result().with_rows("values", valued.result())

    async def update(self, batch: TrajectoryBatch, step: int, timing: dict[str, float]) -> dict[str, float]:
        """Train the critic, and the policy once the critic is warmed up. Neither reads what the other writes."""

        async def critic() -> StepResult:
            self._stage(step, "update_critic")
            with timed(timing, "update_critic"), span("stage.update_critic", step=step):
                return await update_critic(self._ctx, batch, step)

        async def policy() -> StepResult:
            self._stage(step, "update_actor")
            with timed(timing, "update_actor"), span("stage.update", step=step):
                return await update_policy(self._ctx, batch, step)

        updates = [critic] if self._ctx.services.critic is not None else []
        if step > self._ctx.config.trainer.critic_warmup:
            updates.append(policy)
        async with asyncio.TaskGroup() as tasks:
            results = [tasks.create_task(update()) for update in updates]
        return {name: value for result in results for name, value in result.result().metrics.items()}

    def account(self, fates: assemble.Fates, step: int) -> None:
        """Enter what became of every sample of the step."""
        self._ctx.ledger.trained(fates.trained, step)
        self._ctx.ledger.dropped(fates.empty, "no token of it is trained: it is empty, or was rejected")
        self._ctx.ledger.dropped(fates.unjudged, "not judged: its tokens were masked out")


def _kl_controller(ctx: RunContext) -> KLController:
    control = ctx.config.algorithm.kl_ctrl
    horizon = float(control.horizon) if control.type == "adaptive" else None
    return KLController(control.kl_coef, control.target_kl, horizon)
