"""The critic's stages: values before the advantages, and its own update after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from argosy.config import Config
from argosy.controller.context import RunContext
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import StateError
from argosy.types.ids import SampleId
from argosy.types.records import LossConfig, StepResult, UpdateConfig

_INPUTS = ("sample_id", "prompt_ids", "response_ids", "response_mask")
_TRAINED_ON = (*_INPUTS, "values", "returns")


async def compute_values(ctx: RunContext, batch: TrajectoryBatch) -> Mapping[SampleId, npt.NDArray[Any]]:
    """V of the state before each response token, by sample: what `batch.with_rows("values", …)` takes."""
    critic = ctx.services.critic
    if critic is None:
        raise StateError("this run has no critic")
    ids = TrajectoryBatch(batch.table.select(list(_INPUTS)))
    answer = await critic.compute_values(ids, deadline_s=ctx.deadline_s)
    return dict(zip(answer.sample_ids, answer.ragged("values"), strict=True))


def value_update_config(config: Config) -> UpdateConfig:
    """The critic's objective and walk over the batch, from verl's `critic.*` keys."""
    critic = config.full_critic
    return UpdateConfig(
        loss=LossConfig(
            loss_mode="value",
            loss_agg_mode=critic.loss_agg_mode or "token-mean",
            loss_scale_factor=config.actor_rollout_ref.actor.loss_scale_factor
            or float(config.data.max_response_length),
            options={"cliprange_value": critic.cliprange_value},
        ),
        mini_batch_size=(critic.ppo_mini_batch_size or 0) * config.actor_rollout_ref.rollout.n,
        ppo_epochs=critic.ppo_epochs or 0,
        shuffle=bool(critic.shuffle),
        seed=critic.data_loader_seed or 0,
    )


async def update_critic(ctx: RunContext, batch: TrajectoryBatch, step: int) -> StepResult:
    """Train the critic on the batch: it goes from step - 1 to `step`, exactly once whatever is retried."""
    critic = ctx.services.critic
    if critic is None:
        raise StateError("this run has no critic")
    sent = TrajectoryBatch(batch.table.select(list(_TRAINED_ON)))
    mutation = ctx.mutation("update-critic", step, expected_step=step - 1)
    return await critic.update(sent, value_update_config(ctx.config), mutation)
