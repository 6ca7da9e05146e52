"""Fields that must fit each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from argosy.config.schema import Config, OptimConfig
from argosy.config.schema.optim import OPTIMIZERS
from argosy.config.validate.rules import one_of

LOGGERS = ("console", "file", "tensorboard", "wandb")
_MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"


def check_batches(config: Config) -> Iterator[str]:
    """Mini-batches and micro-batches."""
    data, actor = config.data, config.actor_rollout_ref.actor
    problem = divisor_problem(
        "actor_rollout_ref.actor.ppo_mini_batch_size", actor.ppo_mini_batch_size, data.train_batch_size
    )
    if problem:
        yield problem
    yield from _check_micro_batches(config)


def divisor_problem(path: str, mini: int, batch: int) -> str:
    """The line about a mini-batch that isn't a whole part of the batch; empty if it is one."""
    if mini > batch:
        return (
            f"{path}: got {mini} for data.train_batch_size={batch}: a mini-batch is a part of the batch (both count "
            f"prompts); wants ≤ {batch}"
        )
    if batch % mini:
        return (
            f"{path}: got {mini}, which doesn't divide data.train_batch_size={batch} "
            f"({batch} = {batch // mini} × {mini} + {batch % mini}); {_divisors_near(batch, mini)}"
        )
    return ""


def _divisors_near(batch: int, mini: int) -> str:
    below = max(d for d in range(1, mini + 1) if batch % d == 0)
    above = min(d for d in range(mini, batch + 1) if batch % d == 0)
    return f"nearest that do: {below} and {above}"


def _check_micro_batches(config: Config) -> Iterator[str]:
    actor, n = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout.n
    micro, sequences = actor.ppo_micro_batch_size_per_gpu, actor.ppo_mini_batch_size * n
    if micro is not None and not actor.use_dynamic_bsz and micro > sequences:
        yield (
            f"{_MICRO}: got {micro} for mini-batches of {sequences} sequences (ppo_mini_batch_size "
            f"{actor.ppo_mini_batch_size} × rollout.n {n}); wants ≤ {sequences}"
        )
    longest = config.data.max_prompt_length + config.data.max_response_length
    budgets = {
        "actor.ppo_max_token_len_per_gpu": actor.ppo_max_token_len_per_gpu,
        "rollout.log_prob_max_token_len_per_gpu": config.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu,
        "ref.log_prob_max_token_len_per_gpu": config.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu,
    }
    in_use = {
        "actor.ppo_max_token_len_per_gpu": actor.use_dynamic_bsz or micro is None,
        "rollout.log_prob_max_token_len_per_gpu": _by_tokens(config.actor_rollout_ref.rollout),
        "ref.log_prob_max_token_len_per_gpu": config.needs_reference and _by_tokens(config.actor_rollout_ref.ref),
    }
    for name, budget in budgets.items():
        if in_use[name] and budget < longest:
            yield (
                f"actor_rollout_ref.{name}: got {budget}, less than one sequence may have "
                f"(data.max_prompt_length + data.max_response_length = {longest}); wants ≥ {longest}"
            )


def _by_tokens(section: object) -> bool:
    micro = getattr(section, "log_prob_micro_batch_size_per_gpu", None)
    return micro is None or bool(getattr(section, "log_prob_use_dynamic_bsz", False))


def check_lengths(config: Config) -> Iterator[str]:
    """Prompt, response and context."""
    rollout, data = config.actor_rollout_ref.rollout, config.data
    if rollout.max_model_len is not None and rollout.max_model_len <= data.max_prompt_length:
        yield (
            f"actor_rollout_ref.rollout.max_model_len: got {rollout.max_model_len} with data.max_prompt_length="
            f"{data.max_prompt_length}: no room for a response; wants > {data.max_prompt_length}"
        )
    if config.argosy.rollout.min_response_length > data.max_response_length:
        yield (
            f"argosy.rollout.min_response_length: got {config.argosy.rollout.min_response_length}, more than "
            f"data.max_response_length={data.max_response_length}"
        )


def check_optimizer(config: Config) -> Iterator[str]:
    """Betas, warm-up and schedule, of the policy and of a critic that runs."""
    yield from _check_optim(config, "actor_rollout_ref.actor.optim", config.actor_rollout_ref.actor.optim)
    if config.needs_critic:
        yield from _check_optim(config, "critic.optim", config.critic.optim)


def _check_optim(config: Config, path: str, optim: OptimConfig) -> Iterator[str]:
    if not all(0 <= beta < 1 for beta in optim.betas):
        yield f"{path}.betas: got {list(optim.betas)}, wants both ≥ 0 and < 1"
    if optim.kind not in OPTIMIZERS:
        known = one_of(f"{name} with optimizer_impl={impl}" for name, impl in OPTIMIZERS)
        yield f"{path}.optimizer: got {optim.optimizer} with optimizer_impl={optim.optimizer_impl}, wants {known}"
    if "lr" in (optim.override_optimizer_config or {}):
        yield f"{path}.override_optimizer_config: got lr, which the schedule sets; set {path}.lr"
    lengths = {
        f"{path}.total_training_steps": optim.total_training_steps,
        "trainer.total_training_steps": config.trainer.total_training_steps or -1,
    }
    for name, steps in lengths.items():
        if 0 < steps < optim.lr_warmup_steps:
            yield (
                f"{path}.lr_warmup_steps: got {optim.lr_warmup_steps}, more than {name}={steps}: the learning rate "
                "would never reach its peak"
            )
            return


def check_trainer(config: Config) -> Iterator[str]:
    """Machines, loggers, resume, validation."""
    trainer = config.trainer
    if trainer.nnodes != 1:
        yield (
            f"trainer.nnodes: got {trainer.nnodes}; the trainer's ranks are processes on one machine; wants 1, and "
            "trainer.n_gpus_per_node ranks"
        )
    for name in trainer.logger:
        if name not in LOGGERS:
            yield f"trainer.logger: got {name!r}, wants a list of {one_of(LOGGERS)}"
    if trainer.resume_mode == "resume_path" and not trainer.resume_from_path:
        yield "trainer.resume_from_path: must name a global_step_N folder, since trainer.resume_mode=resume_path"
    if trainer.resume_mode != "resume_path" and trainer.resume_from_path:
        yield (
            f"trainer.resume_from_path: got {trainer.resume_from_path!r}, but trainer.resume_mode="
            f"{trainer.resume_mode} doesn't read it; set trainer.resume_mode=resume_path"
        )
    yield from _check_validation(config)


def _check_validation(config: Config) -> Iterator[str]:
    trainer, sampling = config.trainer, config.actor_rollout_ref.rollout.val_kwargs
    if trainer.val_only and not trainer.val_before_train:
        yield "trainer.val_before_train: got false with trainer.val_only=true: nothing would be done; set it true"
    if sampling.n > 1 and (not sampling.do_sample or sampling.temperature == 0):
        yield (
            f"actor_rollout_ref.rollout.val_kwargs.n: got {sampling.n} with greedy validation (do_sample="
            f"{str(sampling.do_sample).lower()}, temperature={sampling.temperature:g}): all {sampling.n} responses "
            "would be the same; set val_kwargs.do_sample=true and a temperature, or n=1"
        )


def check_argosy(config: Config) -> Iterator[str]:
    """Placement, determinism, addresses."""
    argosy = config.argosy
    if argosy.deterministic:
        yield from _check_deterministic(config)
    for name in ("controller", "rollout", "trainer", "critic", "reference", "reward"):
        host = getattr(argosy, name).host
        if not is_loopback(host) and not argosy.allow_remote_hosts:
            yield (
                f"argosy.{name}.host: got {host!r}; calls are neither encrypted nor authenticated, so only loopback is "
                "accepted; on a network that you trust set argosy.allow_remote_hosts=true"
            )
    if argosy.rpc.retry_max_backoff_s < argosy.rpc.retry_initial_backoff_s:
        yield (
            f"argosy.rpc.retry_max_backoff_s: got {argosy.rpc.retry_max_backoff_s:g}, less than "
            f"retry_initial_backoff_s={argosy.rpc.retry_initial_backoff_s:g}"
        )


def _check_deterministic(config: Config) -> Iterator[str]:
    types = {
        "argosy.rollout.dtype": config.argosy.rollout.dtype,
        "argosy.reference.dtype": config.argosy.reference.dtype,
        "actor_rollout_ref.actor.fsdp_config.dtype": config.actor_rollout_ref.actor.fsdp_config.dtype,
        "critic.fsdp_config.dtype": config.critic.fsdp_config.dtype,
    }
    for path, dtype in types.items():
        if dtype != "float32":
            yield f"{path}: got {dtype} with argosy.deterministic=true, which holds bit for bit in float32 only"
    for name in ("rollout", "trainer", "critic", "reference"):
        device = getattr(config.argosy, name).device
        if device not in ("auto", "cpu"):
            yield f"argosy.{name}.device: got {device!r} with argosy.deterministic=true, which holds on cpu only"


def check_devices(config: Config) -> Iterator[str]:
    """Device names, of the services that compute."""
    for name in ("rollout", "trainer", "critic", "reference"):
        device = getattr(config.argosy, name).device
        kind, _, index = device.partition(":")
        if device not in ("auto", "cpu", "cuda") and not (kind == "cuda" and index.isdigit()):
            yield f"argosy.{name}.device: got {device!r}, wants auto, cpu, cuda or cuda:N"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
