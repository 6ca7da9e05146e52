"""The optimizer step: what the trainer is asked to do with a batch."""

from __future__ import annotations

import dataclasses

from argosy.algorithms.catalog import LOSSES
from argosy.config import Config
from argosy.config.convert import get_value
from argosy.controller.context import RunContext
from argosy.types.batch import TrajectoryBatch
from argosy.types.records import LossConfig, StepResult, UpdateConfig

_COMMON = frozenset(field.name for field in dataclasses.fields(LossConfig)) | {"clip_ratio"}
"""Last names of keys that have a field of their own in LossConfig."""


def loss_config(config: Config) -> LossConfig:
    """The objective, from verl's `actor_rollout_ref.actor` keys.

    Bypass mode is a loss of its own, in place of vanilla (as in verl). Numbers of one mode alone travel as options,
    under the last name of their key; null is left out and means the loss's own default.
    """
    actor = config.actor_rollout_ref.actor
    mode = "bypass_mode" if config.algorithm.rollout_correction.bypass_mode else actor.policy_loss.loss_mode
    info = LOSSES[mode]
    options = {path.rpartition(".")[2]: get_value(config, path) for path in info.keys}
    return LossConfig(
        loss_mode=mode,
        clip_ratio_low=actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low,
        clip_ratio_high=actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high,
        clip_ratio_c=actor.clip_ratio_c,
        loss_agg_mode=actor.loss_agg_mode or info.aggregation,
        loss_scale_factor=actor.loss_scale_factor or float(config.data.max_response_length),
        entropy_coeff=actor.entropy_coeff,
        use_kl_loss=actor.use_kl_loss,
        kl_loss_coef=actor.kl_loss_coef,
        kl_loss_type=actor.kl_loss_type,
        temperature=config.actor_rollout_ref.rollout.temperature,
        options={name: value for name, value in options.items() if name not in _COMMON and value is not None},
    )


def update_config(config: Config) -> UpdateConfig:
    """How the batch is walked over. Mini-batches are counted in prompts by verl, in sequences by the trainer."""
    actor = config.actor_rollout_ref.actor
    return UpdateConfig(
        loss=loss_config(config),
        mini_batch_size=actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n,
        ppo_epochs=actor.ppo_epochs,
        shuffle=actor.shuffle,
        seed=config.argosy.seed if actor.data_loader_seed is None else actor.data_loader_seed,
    )


async def update_policy(ctx: RunContext, batch: TrajectoryBatch, step: int) -> StepResult:
    """Train on the batch: the trainer goes one step on, exactly once whatever is retried."""
    wanted = ["sample_id", "prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "advantages"]
    wanted += [name for name in ("old_log_probs", "ref_log_probs", "rollout_is_weights") if batch.has(name)]
    sent = TrajectoryBatch(batch.table.select(wanted))
    mutation = ctx.mutation("update", step, expected_step=ctx.trainer_step("actor", step) - 1)
    return await ctx.services.policy.update(sent, update_config(ctx.config), mutation)
