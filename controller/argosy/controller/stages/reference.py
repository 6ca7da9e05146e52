"""Log-probs of the sampled tokens: the trainer's own before the update (old), and the frozen reference's."""

from __future__ import annotations

import asyncio

from argosy.config import Config
from argosy.controller.context import RunContext
from argosy.types.batch import TrajectoryBatch

_INPUTS = ("sample_id", "prompt_ids", "response_ids", "response_mask")


def needs_old_log_probs(config: Config) -> bool:
    """Whether old log-probs need a forward pass of their own.

    When one optimizer step sees the whole batch once, old and new weights are the same in that step: the trainer takes
    its own log-probs, detached, and the pass is saved. KL in the reward needs them before the advantages.
    """
    actor = config.actor_rollout_ref.actor
    one_step = actor.ppo_epochs == 1 and actor.ppo_mini_batch_size >= config.data.train_batch_size
    return not one_step or config.algorithm.use_kl_in_reward


async def add_log_probs(ctx: RunContext, batch: TrajectoryBatch) -> TrajectoryBatch:
    """The batch with old_log_probs and ref_log_probs where they are needed, matched by sample id."""
    temperature = ctx.config.actor_rollout_ref.rollout.temperature
    ids = TrajectoryBatch(batch.table.select(list(_INPUTS)))
    calls = {}
    if needs_old_log_probs(ctx.config):
        calls["old_log_probs"] = ctx.services.policy.compute_log_probs
    if ctx.services.reference is not None:
        calls["ref_log_probs"] = ctx.services.reference.compute_log_probs
    answers = await asyncio.gather(
        *(call(ids, ["log_probs"], temperature=temperature, deadline_s=ctx.deadline_s) for call in calls.values())
    )
    for name, answer in zip(calls, answers, strict=True):
        rows = dict(zip(answer.sample_ids, answer.ragged("log_probs"), strict=True))
        batch = batch.with_rows(name, rows)
    return batch
