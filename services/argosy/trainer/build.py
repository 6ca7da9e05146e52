"""A trainer core from the run's configuration."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from argosy.config import Config
from argosy.config.schema import EngineConfig, OptimConfig
from argosy.modeling.determinism import use_repeatable_kernels
from argosy.modeling.loading import ModelSource
from argosy.modeling.memory import keep_freed_memory
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.trainer.backends import make_backend
from argosy.trainer.core import Trainer
from argosy.trainer.options import FsdpOptions, LoraOptions, OffloadOptions, OptimizerOptions, TrainerOptions
from argosy.trainer.parallel.mesh import ParallelOptions
from argosy.trainer.schedule import Schedule
from argosy.types.errors import ConfigError
from argosy.weightsync.chain import ChainSettings
from argosy.weightsync.transports.base import SendOptions


def build_core(cfg: Config) -> Trainer:
    """Load the policy and make its optimizer. Blocks for as long as that takes."""
    return _trainer(options_from(cfg))


def build_critic(cfg: Config) -> Trainer:
    """Load the critic and make its optimizer. Blocks for as long as that takes."""
    return _trainer(critic_options_from(cfg))


def _trainer(options: TrainerOptions) -> Trainer:
    keep_freed_memory()
    if options.deterministic:
        use_repeatable_kernels()
    return Trainer(options, make_backend)


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
        lora=_lora(cfg),
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
        optimizer=_optimizer(cfg, actor.optim, actor.grad_clip),
        report_entropy=actor.calculate_entropy,
        max_shard_size=service.max_shard_size,
        offload=OffloadOptions(
            actor.fsdp_config.param_offload, actor.fsdp_config.optimizer_offload, model.enable_activation_offload
        ),
        compile_layers=actor.use_torch_compile,
        native_kernels=service.native_kernels,
        parallel=ParallelOptions(
            world_size=cfg.trainer.n_gpus_per_node,
            tensor_parallel=service.tensor_parallel_size,
            sequence_parallel=actor.ulysses_sequence_parallel_size,
        ),
        backend=backend_of(cfg),
        rank_timeout_s=service.rank_timeout_s,
        fsdp=_fsdp(actor.fsdp_config),
        publish_dtype=cfg.published_dtype,
        send=_send(cfg),
        threads=_threads(cfg, "trainer"),
        deterministic=cfg.argosy.deterministic,
    )


def critic_options_from(cfg: Config) -> TrainerOptions:
    """The critic's part of the configuration; what it has no key of its own for is as the trainer's."""
    critic, service = cfg.full_critic, cfg.argosy.critic
    dynamic = bool(critic.use_dynamic_bsz)
    policy = options_from(cfg)
    return replace(
        policy,
        backend=_critic_backend(policy),
        parallel=replace(policy.parallel, sequence_parallel=critic.ulysses_sequence_parallel_size or 1),
        value_head=True,
        lora=None,  # the policy's; a critic trains all its weights
        model=ModelSource(
            path=critic.model.path or "",
            device=service.device,
            trust_remote_code=bool(critic.model.trust_remote_code),
            override_config=critic.model.override_config,
        ),
        tokenizer_path=critic.model.tokenizer_path,
        compute_dtype=critic.fsdp_config.dtype,
        gradient_checkpointing=critic.model.enable_gradient_checkpointing,
        offload=OffloadOptions(
            critic.fsdp_config.param_offload,
            critic.fsdp_config.optimizer_offload,
            critic.model.enable_activation_offload,
        ),
        update_limit=MicroBatchLimit.by_verls_rule(
            critic.ppo_micro_batch_size_per_gpu, dynamic, critic.ppo_max_token_len_per_gpu
        ),
        log_prob_limit=MicroBatchLimit.by_verls_rule(
            critic.forward_micro_batch_size_per_gpu,
            dynamic,
            critic.forward_max_token_len_per_gpu or critic.ppo_max_token_len_per_gpu,
        ),
        optimizer=_optimizer(cfg, critic.optim, critic.grad_clip),
        fsdp=_fsdp(critic.fsdp_config),
        threads=_threads(cfg, "critic"),
    )


def _send(cfg: Config) -> SendOptions:
    sync = cfg.argosy.weight_sync
    return SendOptions(
        bucket_bytes=sync.bucket_mb << 20,
        streams=sync.streams,
        host=cfg.argosy.trainer.host,
        backend=sync.collective_backend,
        device=cfg.argosy.trainer.device,
        broadcast=sync.collective_broadcast,
        folder=sync.disk_path or str(cfg.run_folder / "weights"),
        chain=ChainSettings(sync.disk_base_every, sync.disk_keep),
        delta=sync.delta == "xor" or (sync.delta == "auto" and sync.transport == "disk"),
    )


def backend_of(cfg: Config) -> str:
    """Name of the trainer's backend, "auto" resolved."""
    asked = cfg.argosy.trainer.backend
    if asked != "auto":
        return asked
    if cfg.actor_rollout_ref.actor.strategy == "megatron":
        return "megatron"
    away = cfg.actor_rollout_ref.actor.fsdp_config.param_offload  # of FSDP only
    return "single" if cfg.trainer.n_gpus_per_node == 1 and not away else "fsdp"


def _critic_backend(policy: TrainerOptions) -> str:
    """The policy's; megatron-core's model has no value head here, so its critic is FSDP2's."""
    if policy.backend != "megatron":
        return policy.backend
    return "single" if policy.parallel.world_size == 1 else "fsdp"


def _fsdp(engine: EngineConfig) -> FsdpOptions:
    return FsdpOptions(engine.fsdp_size, engine.reshard_after_forward, engine.forward_prefetch)


def _threads(cfg: Config, role: str) -> int:
    """Threads of one rank: ranks on one machine share its cores, which PyTorch's own choice doesn't know."""
    threads, ranks = cfg.argosy.threads_of(role), cfg.trainer.n_gpus_per_node
    if threads == 0 and ranks > 1:
        return max(1, len(os.sched_getaffinity(0)) // ranks) if hasattr(os, "sched_getaffinity") else 1
    return threads


def _optimizer(cfg: Config, optim: OptimConfig, grad_clip: float) -> OptimizerOptions:
    return OptimizerOptions(
        schedule=schedule_from(cfg, optim),
        optimizer=optim.kind[0],
        optimizer_impl=optim.kind[1],
        override=dict(optim.override_optimizer_config or {}),
        weight_decay=optim.weight_decay,
        betas=optim.betas,
        eps=optim.eps,
        no_decay_1d=cfg.argosy.trainer.no_decay_1d,
        grad_clip=grad_clip,
    )


def _lora(cfg: Config) -> LoraOptions | None:
    model = cfg.actor_rollout_ref.model
    if not model.uses_lora:
        return None
    return LoraOptions(
        rank=model.lora_rank,
        alpha=model.lora_alpha,
        target_modules=_modules(model.target_modules) or "all-linear",
        exclude_modules=_modules(model.exclude_modules),
        adapter_path=model.lora_adapter_path,
        seed=cfg.argosy.seed,
    )


def _modules(names: tuple[str, ...]) -> str | tuple[str, ...] | None:
    """As peft tells them apart: one text is a regular expression (or "all-linear"), a list has name endings."""
    if len(names) == 1 and (names[0] == "all-linear" or not re.fullmatch(r"[\w.]+", names[0])):
        return names[0]
    return names or None


def schedule_from(cfg: Config, optim: OptimConfig) -> Schedule:
    """The schedule. Its length is optim.total_training_steps, else trainer.total_training_steps."""
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
