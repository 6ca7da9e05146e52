"""A trainer core from the run's configuration."""

from __future__ import annotations

from argosy.config import Config
from argosy.modeling.determinism import use_repeatable_kernels
from argosy.modeling.loading import ModelSource
from argosy.modeling.memory import keep_freed_memory
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.trainer.backends import make_backend
from argosy.trainer.core import Trainer
from argosy.trainer.options import OptimizerOptions, TrainerOptions
from argosy.trainer.schedule import Schedule
from argosy.types.errors import ConfigError


def build_core(cfg: Config) -> Trainer:
    """Load the model and make the optimizer. Blocks for as long as that takes."""
    keep_freed_memory()
    if cfg.argosy.deterministic:
        use_repeatable_kernels()
    return Trainer(options_from(cfg), make_backend)


def options_from(cfg: Config) -> TrainerOptions:
    """The trainer's part of the configuration."""
    model, actor, rollout = cfg.actor_rollout_ref.model, cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.rollout
    service = cfg.argosy.trainer
    return TrainerOptions(
        model=ModelSource(
            path=model.path,
            device=service.device,
            trust_remote_code=model.trust_remote_code,
            override_config=model.override_config,
        ),
        tokenizer_path=model.tokenizer_path,
        chat_template=model.custom_chat_template,
        compute_dtype=actor.fsdp_config.dtype,
        gradient_checkpointing=model.enable_gradient_checkpointing,
        log_prob_chunk_tokens=service.log_prob_chunk_tokens,
        update_limit=MicroBatchLimit.by_verls_rule(
            actor.ppo_micro_batch_size_per_gpu, actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu
        ),
        log_prob_limit=MicroBatchLimit.by_verls_rule(
            rollout.log_prob_micro_batch_size_per_gpu,
            rollout.log_prob_use_dynamic_bsz,
            rollout.log_prob_max_token_len_per_gpu,
        ),
        optimizer=OptimizerOptions(
            schedule=schedule_from(cfg),
            weight_decay=actor.optim.weight_decay,
            betas=actor.optim.betas,
            eps=actor.optim.eps,
            grad_clip=actor.grad_clip,
        ),
        report_entropy=actor.calculate_entropy,
        max_shard_size=service.max_shard_size,
        publish_dtype=cfg.argosy.rollout.dtype,
        threads=cfg.argosy.threads_of("trainer"),
    )


def schedule_from(cfg: Config) -> Schedule:
    """The schedule. Its length is optim.total_training_steps, else trainer.total_training_steps."""
    optim = cfg.actor_rollout_ref.actor.optim
    total = optim.total_training_steps if optim.total_training_steps > 0 else cfg.trainer.total_training_steps
    warmup = optim.lr_warmup_steps
    if warmup < 0:
        if optim.lr_warmup_steps_ratio > 0 and total is None:
            raise ConfigError(
                "optim.lr_warmup_steps_ratio needs the run's length: set optim.total_training_steps or "
                "trainer.total_training_steps, or give optim.lr_warmup_steps"
            )
        warmup = int(optim.lr_warmup_steps_ratio * (total or 0))
    return Schedule(
        peak=optim.lr,
        shape=optim.lr_scheduler_type,
        warmup_steps=warmup,
        total_steps=total,
        min_ratio=optim.min_lr_ratio,
        cycles=optim.num_cycles,
    )
