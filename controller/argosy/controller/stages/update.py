"""The optimizer step: what the trainer is asked to do with a batch."""

from __future__ import annotations

from argosy.config import Config
from argosy.controller.context import RunContext
from argosy.types.batch import TrajectoryBatch
from argosy.types.records import LossConfig, StepResult, UpdateConfig


def loss_config(config: Config) -> LossConfig:
    """The objective, from verl's `actor_rollout_ref.actor` keys."""
    actor = config.actor_rollout_ref.actor
    return LossConfig(
        loss_mode=actor.policy_loss.loss_mode,
        clip_ratio_low=actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low,
        clip_ratio_high=actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high,
        clip_ratio_c=actor.clip_ratio_c,
        loss_agg_mode=actor.loss_agg_mode,
        loss_scale_factor=actor.loss_scale_factor or float(config.data.max_response_length),
        entropy_coeff=actor.entropy_coeff,
        use_kl_loss=actor.use_kl_loss,
        kl_loss_coef=actor.kl_loss_coef,
        kl_loss_type=actor.kl_loss_type,
        temperature=config.actor_rollout_ref.rollout.temperature,
        options={"calculate_entropy": actor.calculate_entropy},
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
    """Train on the batch: the trainer goes from step - 1 to `step`, exactly once whatever is retried."""
    wanted = ["sample_id", "prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "advantages"]
    wanted += [name for name in ("old_log_probs", "ref_log_probs") if batch.has(name)]
    sent = TrajectoryBatch(batch.table.select(wanted))
    mutation = ctx.mutation("update", step, expected_step=step - 1)
    return await ctx.services.policy.update(sent, update_config(ctx.config), mutation)
