"""A trainer and a scorer in virtual time: they compute nothing, and take as long as the workload says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import StepMismatchError
from argosy.types.ids import PolicyVersion
from argosy.types.ragged import Ragged
from argosy.types.records import (
    Mutation,
    RewardCapabilities,
    Scored,
    ScoreRequest,
    ScoreResult,
    StepResult,
    TrainerStatus,
    TransferOffer,
    UpdateConfig,
    WeightsForm,
    WeightsManifest,
)
from simulated_fleet.server import LOG_PROB
from simulated_fleet.workload import UPDATE_S, Workload


class SimulatedTrainer:
    """Implements what the loop calls of `argosy.roles.policy.Policy`; fenced by steps, as a real one.

    Args:
        work: See Workload.
        samples: Of a step, which it is large enough for.
    """

    def __init__(self, work: Workload, samples: int) -> None:
        self._work = work
        self._samples = samples
        self._step = 0
        self._version: PolicyVersion | None = None
        self.busy_s = 0.0
        """In updates and log-probs."""

    async def status(self) -> TrainerStatus:
        """See the role."""
        return TrainerStatus(self._step, self._version, 0, host_id="virtual", transports=("stream",))

    async def update(self, batch: TrajectoryBatch, config: UpdateConfig, ctx: Mutation) -> StepResult:
        """Take the time of an update."""
        if ctx.expected_step is not None and ctx.expected_step != self._step:
            raise StepMismatchError(f"the trainer is at step {self._step}, {ctx.expected_step} was expected")
        await self._work_for(UPDATE_S, batch)
        self._step += 1
        return StepResult(self._step, {"actor/pg_loss": 0.0, "actor/grad_norm": 1.0})

    async def compute_log_probs(
        self, batch: TrajectoryBatch, columns: Sequence[str], *, temperature: float, deadline_s: float
    ) -> TrajectoryBatch:
        """Take the time of a forward pass; the log-probs are the rollout's."""
        ids = batch.ragged("response_ids")
        await self._work_for(self._work.log_prob_s, batch)
        values = np.full(len(ids.values), LOG_PROB, np.float32)
        for column in columns:
            batch = batch.with_column(column, Ragged(values, ids.offsets))
        return batch

    async def publish_weights(
        self, lineage: str, step: int, ctx: Mutation, *, form: WeightsForm = WeightsForm.MERGED
    ) -> WeightsManifest:
        """A version without tensors."""
        self._version = PolicyVersion(lineage, step, f"{step:064x}")
        return WeightsManifest(self._version, ())

    def weight_source(self) -> None:
        """There is nothing to fetch."""

    async def open_transfer(
        self, transport: str, sync_id: str, receiver_count: int, ctx: Mutation
    ) -> tuple[TransferOffer, ...]:
        """As many offers as receivers."""
        assert self._version is not None
        return (TransferOffer(transport, sync_id, self._version, ""),) * receiver_count

    async def close_transfer(self, sync_id: str, ctx: Mutation) -> None:
        """Nothing was opened."""

    async def save_checkpoint(self, path: str, ctx: Mutation, *, background: bool = False) -> Sequence[str]:
        """Nothing is saved."""
        return []

    async def finish_save(self, path: str, *, deadline_s: float) -> Sequence[str]:
        """Nothing was."""
        return []

    async def _work_for(self, usual_s: float, batch: TrajectoryBatch) -> None:
        seconds = self._work.train_s(usual_s, len(batch.ragged("response_ids").values), self._samples)
        self.busy_s += seconds
        await asyncio.sleep(seconds)


class SimulatedReward:
    """Implements `argosy.roles.reward.Reward`: every other answer is right."""

    def __init__(self, work: Workload) -> None:
        self._work = work

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        """Take the time of judging a group."""
        await asyncio.sleep(self._work.reward_s)
        parts: dict[str, Any] = {}
        return [ScoreResult(item.sample_id, Scored(float(item.sample_id.k % 2), parts)) for item in items]

    async def capabilities(self) -> RewardCapabilities:
        """Any source."""
        return RewardCapabilities(("*",))
