"""Log-probs of the sampled tokens: the trainer's own before the update (old), and the frozen reference's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from argosy.algorithms.catalog import estimator_needs
from argosy.config import Config
from argosy.controller.context import RunContext
from argosy.controller.timing import timed
from argosy.roles.policy import Policy
from argosy.roles.reference import Reference
from argosy.types.batch import TrajectoryBatch

_INPUTS = ("sample_id", "prompt_ids", "response_ids", "response_mask")
_OF_THE_POLICY = {
    "log_probs": "old_log_probs",
    "sum_pi_squared": "sum_pi_squared",
    "base_log_probs": "ref_log_probs",
}
_OF_THE_REFERENCE = {"log_probs": "ref_log_probs"}


def needs_old_log_probs(config: Config) -> bool:
    """Whether old log-probs need a forward pass of their own.

    When one optimizer step sees the whole batch once, old and new weights are the same in that step: the trainer takes
    its own log-probs, detached, and the pass is saved. KL in the reward, rollout correction and some estimators need
    them before. In bypass mode the engine's log-probs stand for them.
    """
    correction = config.algorithm.rollout_correction
    if correction.bypass_mode:
        return False
    actor = config.actor_rollout_ref.actor
    one_step = actor.ppo_epochs == 1 and actor.ppo_mini_batch_size >= config.data.train_batch_size
    before = {"old_log_probs", "sum_pi_squared"} & estimator_needs(config.algorithm.adv_estimator)
    return not one_step or config.algorithm.use_kl_in_reward or correction.decoupled or bool(before)


def policy_columns(config: Config) -> list[str]:
    """What the trainer is asked for before the update; may be nothing.

    With LoRA it stands for the reference too: its model without the adapter is the start model.
    """
    columns = []
    if needs_old_log_probs(config):
        columns += ["log_probs", *({"sum_pi_squared"} & estimator_needs(config.algorithm.adv_estimator))]
    if config.needs_ref_log_probs and config.actor_rollout_ref.model.uses_lora:
        columns.append("base_log_probs")
    return columns


async def add_log_probs(ctx: RunContext, batch: TrajectoryBatch, timing: dict[str, float]) -> TrajectoryBatch:
    """The batch with old_log_probs, sum_pi_squared and ref_log_probs where they are needed, matched by sample id.

    The trainer's pass adds its seconds to timing["old_log_prob"], the reference's to timing["ref"]; they run at one
    time, so the two overlap. A pass of the trainer that stands for the reference alone is the reference's.
    """
    temperature = ctx.config.actor_rollout_ref.rollout.temperature
    ids = TrajectoryBatch(batch.table.select(list(_INPUTS)))
    wanted = policy_columns(ctx.config)
    calls: list[tuple[str, Policy | Reference, Sequence[str], Mapping[str, str]]] = []
    if wanted:
        name = "ref" if wanted == ["base_log_probs"] else "old_log_prob"
        calls.append((name, ctx.services.policy, wanted, _OF_THE_POLICY))
    if ctx.services.reference is not None:
        calls.append(("ref", ctx.services.reference, ["log_probs"], _OF_THE_REFERENCE))

    async def ask(name: str, model: Policy | Reference, columns: Sequence[str]) -> TrajectoryBatch:
        with timed(timing, name):
            return await model.compute_log_probs(ids, columns, temperature=temperature, deadline_s=ctx.deadline_s)

    answers = await asyncio.gather(*(ask(name, model, columns) for name, model, columns, _ in calls))
    for (_, _, columns, names), answer in zip(calls, answers, strict=True):
        samples = answer.sample_ids
        for column in columns:
            batch = batch.with_rows(names[column], dict(zip(samples, answer.ragged(column), strict=True)))
    return batch
