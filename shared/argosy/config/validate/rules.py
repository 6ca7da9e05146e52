"""Ranges and choices of single fields, as one table."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from argosy.algorithms.catalog import ADVANTAGES, AGGREGATION, KL, LOSSES
from argosy.algorithms.rollout_correction.thresholds import LOSS_TYPES
from argosy.config.convert import get_value
from argosy.config.lookup import show
from argosy.config.schema import REWARD_KINDS, Config

_ACTOR, _ROLLOUT, _REF, _VAL = (
    f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref", "rollout.val_kwargs")
)
_TRAINED = (_ACTOR, "critic")
_SHAPES = ("constant", "linear", "cosine", "wsd")
_SERVICES = ("rollout", "trainer", "critic", "reference", "reward")
_DTYPES = ("float32", "bfloat16")
ENGINES = ("hf", "vllm", "sglang", "simulated")
"""Rollout engines: `argosy.rollout.engines.ENGINES` makes them."""
_KL_TYPES = (*KL, *(f"{name}+" for name in KL))


@dataclass(frozen=True)
class Range:
    """A number's bounds; null passes where the field may be null."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    """The lower bound itself is refused."""
    high_open: bool = False
    also: tuple[int, ...] = ()
    """Values outside the bounds that mean something of their own, such as -1."""

    def accepts(self, value: float) -> bool:
        """Whether it lies inside."""
        if value in self.also:
            return True
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return math.isfinite(value) and above and below

    def __str__(self) -> str:
        bounds = []
        if self.low > -math.inf:
            bounds.append(f"{'>' if self.low_open else '≥'} {self.low:g}")
        if self.high < math.inf:
            bounds.append(f"{'<' if self.high_open else '≤'} {self.high:g}")
        return " or ".join([" and ".join(bounds) or "finite", *map(str, self.also)])


POSITIVE = Range(0, low_open=True)
NOT_NEGATIVE = Range(0)
COUNT = Range(1)
OR_OFF = Range(1, also=(-1,))
UNIT = Range(0, 1)

_ENDPOINT_RANGES = {
    "concurrency": COUNT,
    "requests_per_minute": NOT_NEGATIVE,
    "tokens_per_minute": NOT_NEGATIVE,
    "timeout_s": POSITIVE,
    "attempts": COUNT,
    "prompt_price": NOT_NEGATIVE,
    "completion_price": NOT_NEGATIVE,
}
_REWARD_RANGES = {
    **{
        f"argosy.reward.{kind}.endpoint.{name}": bounds
        for kind in ("model", "judge")
        for name, bounds in _ENDPOINT_RANGES.items()
    },
    "argosy.reward.model.threads": NOT_NEGATIVE,
    "argosy.reward.model.max_length": COUNT,
    "argosy.reward.model.max_batch_tokens": COUNT,
    "argosy.reward.model.max_batch_rows": COUNT,
    "argosy.reward.model.min_fill": Range(0, 1, low_open=True),
    "argosy.reward.model.label": NOT_NEGATIVE,
    "argosy.reward.judge.lowest": Range(),
    "argosy.reward.judge.highest": Range(),
    "argosy.reward.judge.judgements": Range(1, 64),
    "argosy.reward.judge.attempts": Range(1, 16),
    "argosy.reward.judge.temperature": NOT_NEGATIVE,
    "argosy.reward.judge.top_p": Range(0, 1, low_open=True),
    "argosy.reward.judge.max_tokens": COUNT,
    "argosy.reward.judge.max_prompt_characters": COUNT,
    "argosy.reward.judge.memory_size": NOT_NEGATIVE,
}

OPTIM_RANGES: dict[str, Range] = {
    "lr": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
    "eps": POSITIVE,
    "lr_warmup_steps": Range(0, also=(-1,)),
    "lr_warmup_steps_ratio": UNIT,
    "min_lr_ratio": UNIT,
    "num_cycles": POSITIVE,
    "total_training_steps": OR_OFF,
}
"""Of every `optim` section."""

RANGES: dict[str, Range] = {
    "data.train_max_samples": OR_OFF,
    "data.val_max_samples": OR_OFF,
    "data.max_prompt_length": COUNT,
    "data.max_response_length": COUNT,
    "data.train_batch_size": COUNT,
    "data.gen_batch_size": COUNT,
    "data.val_batch_size": COUNT,
    "data.seed": NOT_NEGATIVE,
    f"{_ACTOR}.ppo_mini_batch_size": COUNT,
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": COUNT,
    f"{_ACTOR}.ppo_max_token_len_per_gpu": COUNT,
    f"{_ACTOR}.ppo_epochs": COUNT,
    "actor_rollout_ref.model.lora_rank": NOT_NEGATIVE,
    "actor_rollout_ref.model.lora_alpha": POSITIVE,
    f"{_ACTOR}.data_loader_seed": NOT_NEGATIVE,
    f"{_ACTOR}.clip_ratio": Range(0, 1, low_open=True),
    f"{_ACTOR}.clip_ratio_low": Range(0, 1, low_open=True),
    f"{_ACTOR}.clip_ratio_high": POSITIVE,
    f"{_ACTOR}.clip_ratio_c": Range(1, low_open=True),
    f"{_ACTOR}.tau_pos": POSITIVE,
    f"{_ACTOR}.tau_neg": POSITIVE,
    f"{_ACTOR}.policy_loss.clip_cov_ratio": Range(0, 1, low_open=True),
    f"{_ACTOR}.policy_loss.clip_cov_lb": Range(),
    f"{_ACTOR}.policy_loss.clip_cov_ub": Range(),
    f"{_ACTOR}.policy_loss.kl_cov_ratio": Range(0, 1, low_open=True),
    f"{_ACTOR}.policy_loss.ppo_kl_coef": NOT_NEGATIVE,
    f"{_ACTOR}.policy_loss.dro_beta": POSITIVE,
    f"{_ACTOR}.ulysses_sequence_parallel_size": COUNT,
    "critic.ulysses_sequence_parallel_size": COUNT,
    "argosy.trainer.tensor_parallel_size": COUNT,
    f"{_ACTOR}.loss_scale_factor": POSITIVE,
    f"{_ACTOR}.entropy_coeff": Range(),
    f"{_ACTOR}.kl_loss_coef": NOT_NEGATIVE,
    f"{_ACTOR}.grad_clip": POSITIVE,
    **{f"{section}.optim.{name}": bounds for section in _TRAINED for name, bounds in OPTIM_RANGES.items()},
    "critic.ppo_mini_batch_size": COUNT,
    "critic.ppo_micro_batch_size_per_gpu": COUNT,
    "critic.forward_micro_batch_size_per_gpu": COUNT,
    "critic.ppo_max_token_len_per_gpu": COUNT,
    "critic.forward_max_token_len_per_gpu": COUNT,
    "critic.ppo_epochs": COUNT,
    "critic.data_loader_seed": NOT_NEGATIVE,
    "critic.cliprange_value": POSITIVE,
    "critic.grad_clip": POSITIVE,
    f"{_ROLLOUT}.n": COUNT,
    f"{_ROLLOUT}.temperature": POSITIVE,
    f"{_ROLLOUT}.top_k": Range(1, also=(-1, 0)),
    f"{_ROLLOUT}.top_p": Range(0, 1, low_open=True),
    f"{_ROLLOUT}.repetition_penalty": POSITIVE,
    f"{_ROLLOUT}.max_model_len": Range(2),
    f"{_ROLLOUT}.tensor_model_parallel_size": COUNT,
    f"{_ROLLOUT}.gpu_memory_utilization": Range(0, 1, low_open=True),
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": COUNT,
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": COUNT,
    f"{_ROLLOUT}.multi_turn.max_assistant_turns": COUNT,
    f"{_ROLLOUT}.multi_turn.max_user_turns": COUNT,
    f"{_ROLLOUT}.multi_turn.max_parallel_calls": COUNT,
    f"{_ROLLOUT}.multi_turn.max_tool_response_length": COUNT,
    "argosy.agents.tool_timeout_s": POSITIVE,
    "argosy.agents.max_concurrent_calls": COUNT,
    "argosy.agents.episode_timeout_s": POSITIVE,
    f"{_VAL}.n": COUNT,
    f"{_VAL}.temperature": NOT_NEGATIVE,
    f"{_VAL}.top_k": Range(1, also=(-1, 0)),
    f"{_VAL}.top_p": Range(0, 1, low_open=True),
    f"{_REF}.log_prob_micro_batch_size_per_gpu": COUNT,
    f"{_REF}.log_prob_max_token_len_per_gpu": COUNT,
    "algorithm.gamma": UNIT,
    "algorithm.lam": UNIT,
    "algorithm.filter_groups.max_num_gen_batches": Range(0, also=(-1,)),
    "algorithm.kl_ctrl.kl_coef": NOT_NEGATIVE,
    "algorithm.kl_ctrl.horizon": COUNT,
    "algorithm.kl_ctrl.target_kl": POSITIVE,
    "reward_model.reward_kwargs.overlong_buffer_cfg.len": COUNT,
    "reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor": NOT_NEGATIVE,
    "reward_model.reward_kwargs.max_resp_len": COUNT,
    "trainer.total_epochs": COUNT,
    "trainer.total_training_steps": COUNT,
    "trainer.critic_warmup": NOT_NEGATIVE,
    "trainer.save_freq": OR_OFF,
    "trainer.test_freq": OR_OFF,
    "trainer.log_val_generations": NOT_NEGATIVE,
    "trainer.max_actor_ckpt_to_keep": COUNT,
    "argosy.seed": NOT_NEGATIVE,
    "argosy.record.max_gb": NOT_NEGATIVE,
    "argosy.startup_timeout_s": POSITIVE,
    "argosy.stop_grace_s": POSITIVE,
    "argosy.stop_save_s": NOT_NEGATIVE,
    "argosy.sleep_level": Range(1, 2),
    "argosy.restart.limit": NOT_NEGATIVE,
    "argosy.restart.ranks": COUNT,
    "argosy.rollout.slot_count": COUNT,
    "argosy.rollout.kv_tokens": NOT_NEGATIVE,
    "argosy.rollout.max_waiting": COUNT,
    "argosy.rollout.stall_timeout_s": POSITIVE,
    "argosy.rollout.prefill_token_budget": COUNT,
    "argosy.rollout.stream_interval_tokens": COUNT,
    "argosy.rollout.min_p": Range(0, 1, high_open=True),
    "argosy.rollout.min_response_length": NOT_NEGATIVE,
    "argosy.rollout.simulated.decode_ms": NOT_NEGATIVE,
    "argosy.rollout.simulated.decode_ms_per_sample": NOT_NEGATIVE,
    "argosy.rollout.simulated.prefill_us_per_token": NOT_NEGATIVE,
    "argosy.rollout.simulated.length_mean": COUNT,
    "argosy.rollout.simulated.length_spread": NOT_NEGATIVE,
    "argosy.rollout.simulated.failure_after": NOT_NEGATIVE,
    "argosy.rollout.sglang.kv_tokens": NOT_NEGATIVE,
    "argosy.rollout.sglang.filter_tokens": NOT_NEGATIVE,
    "trainer.n_gpus_per_node": COUNT,
    f"{_ACTOR}.fsdp_config.fsdp_size": OR_OFF,
    "critic.fsdp_config.fsdp_size": OR_OFF,
    "argosy.trainer.rank_timeout_s": POSITIVE,
    "argosy.trainer.log_prob_chunk_tokens": COUNT,
    "argosy.reference.log_prob_chunk_tokens": COUNT,
    "argosy.reward.worker_count": COUNT,
    "argosy.reward.timeout_s": POSITIVE,
    "argosy.reward.max_error_rate": UNIT,
    "argosy.reward.sample_attempts": COUNT,
    "argosy.reward.error_window": COUNT,
    "argosy.reward.server.concurrency": COUNT,
    "argosy.reward.server.requests_per_minute": NOT_NEGATIVE,
    "argosy.reward.server.timeout_s": POSITIVE,
    "argosy.reward.server.attempts": COUNT,
    "argosy.reward.http.max_batch_size": COUNT,
    "argosy.reward.sandbox.test_timeout_s": POSITIVE,
    "argosy.reward.sandbox.sample_timeout_s": POSITIVE,
    "argosy.reward.sandbox.memory_mb": Range(64),
    "argosy.reward.sandbox.tmp_mb": COUNT,
    "argosy.reward.sandbox.output_mb": COUNT,
    "argosy.reward.sandbox.process_count": COUNT,
    **_REWARD_RANGES,
    "argosy.max_staleness": Range(0, 64),
    "argosy.stream.max_in_flight_groups": NOT_NEGATIVE,
    "argosy.stream.extra_groups": NOT_NEGATIVE,
    "argosy.stream.extra_samples": NOT_NEGATIVE,
    "argosy.weight_sync.disk_base_every": COUNT,
    "argosy.weight_sync.disk_keep": COUNT,
    "argosy.weight_sync.streams": COUNT,
    "argosy.weight_sync.fan_out": NOT_NEGATIVE,
    "argosy.weight_sync.bucket_mb": COUNT,
    "argosy.openai.port": Range(0, 65535),
    "argosy.openai.min_rewarded": NOT_NEGATIVE,
    "argosy.openai.session_timeout_s": POSITIVE,
    "argosy.openai.max_sessions": COUNT,
    "argosy.openai.max_calls": COUNT,
    "argosy.openai.max_concurrency": COUNT,
    "argosy.openai.max_body_mb": COUNT,
    "argosy.openai.deadline_s": POSITIVE,
    "argosy.parity.max_diff": NOT_NEGATIVE,
    "argosy.parity.mean_diff": NOT_NEGATIVE,
    "argosy.membership.lease_ttl_s": Range(2),
    "argosy.rpc.deadline_s": POSITIVE,
    "argosy.rpc.max_message_bytes": Range(4 * 1024 * 1024, 2**31 - 1),
    "argosy.rpc.retry_attempts": COUNT,
    "argosy.rpc.retry_initial_backoff_s": POSITIVE,
    "argosy.rpc.retry_max_backoff_s": POSITIVE,
    **{f"argosy.{service}.port": Range(0, 65535) for service in (*_SERVICES, "controller")},
    **{f"argosy.{service}.threads": NOT_NEGATIVE for service in _SERVICES if service != "reward"},
}

CHOICES: dict[str, tuple[str, ...]] = {
    "argosy.weight_sync.transport": ("auto", "stream", "shared_memory", "collective", "disk"),
    "argosy.weight_sync.delta": ("auto", "off", "xor"),
    "argosy.weight_sync.while_generating": ("keep", "abort", "finish"),
    "argosy.restart.weights": ("checkpoint", "rollout"),
    "argosy.weight_sync.collective_backend": ("auto", "gloo", "nccl"),
    "argosy.weight_sync.adapter_only": ("auto", "off", "on"),
    "argosy.openai.source": ("dataset", "sessions"),
    "argosy.openai.sampling": ("strict", "run"),
    "argosy.openai.train_branch": ("last", "longest"),
    "argosy.reward.sandbox.isolation": ("required", "allowed_without"),
    "argosy.reward.sandbox.control_groups": ("auto", "required", "off"),
    "argosy.reward.sandbox.credit": ("mean", "all"),
    "data.truncation": ("error", "left", "right", "middle"),
    f"{_ACTOR}.strategy": ("fsdp", "fsdp2", "megatron"),
    f"{_ACTOR}.policy_loss.loss_mode": tuple(LOSSES),
    f"{_ACTOR}.loss_agg_mode": tuple(AGGREGATION),
    f"{_ACTOR}.kl_loss_type": _KL_TYPES,
    **{f"{section}.optim.lr_scheduler_type": _SHAPES for section in _TRAINED},
    **{f"{section}.fsdp_config.model_dtype": ("fp32", "float32") for section in _TRAINED},
    **{f"{section}.fsdp_config.dtype": _DTYPES for section in _TRAINED},
    "critic.loss_agg_mode": tuple(AGGREGATION),
    f"{_ROLLOUT}.name": ENGINES,
    f"{_ROLLOUT}.multi_turn.format": ("hermes", "qwen", "qwen3_coder", "llama3_json", "pythonic", "json"),
    f"{_ROLLOUT}.multi_turn.tool_response_truncate_side": ("left", "right", "middle"),
    f"{_ROLLOUT}.multi_turn.tokenization_sanity_check_mode": ("strict", "ignore_strippable", "disable"),
    "argosy.agents.tool_prompt": ("template", "system", "none"),
    "argosy.agents.malformed_calls": ("tell", "end"),
    "argosy.rollout.simulated.length": ("geometric", "fixed", "uniform", "lognormal"),
    "argosy.rollout.simulated.failure": ("none", "kill", "freeze", "fail", "hang", "error"),
    "algorithm.adv_estimator": tuple(ADVANTAGES),
    "algorithm.kl_penalty": _KL_TYPES,
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    "algorithm.rollout_correction.loss_type": LOSS_TYPES,
    "reward_model.reward_manager": ("naive", "batch", "dapo"),
    "argosy.reward.kind": REWARD_KINDS,
    "argosy.reward.model.dtype": ("float32", "bfloat16", "float16", "float64"),
    "argosy.reward.model.truncation": ("left", "right", "fail"),
    "argosy.reward.model.activation": ("none", "sigmoid", "softmax"),
    "argosy.reward.model.api": ("classify", "score", "pooling", "embeddings", "sglang", "chat"),
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
    "argosy.placement": ("local", "fleet", "inprocess"),
    "argosy.trainer.backend": ("auto", "single", "fsdp", "megatron"),
    "argosy.rollout.dtype": _DTYPES,
    "argosy.reference.dtype": _DTYPES,
}

LATER: dict[str, dict[str, str]] = {
    "algorithm.adv_estimator": {
        "rloo_vectorized": "is a faster spelling of rloo in verl; here rloo is as fast: set rloo",
        "grpo_vectorized": "is a faster spelling of grpo in verl; here grpo is as fast: set grpo",
    },
    f"{_ROLLOUT}.name": {
        "trtllm": "is an engine that is not there: set actor_rollout_ref.rollout.name=hf, vllm or sglang"
    },
    **{
        f"{section}.fsdp_config.model_dtype": dict.fromkeys(
            ("bf16", "bfloat16", "fp16", "float16"),
            "would lose small updates: master weights are fp32; set fsdp_config.dtype for the type of computing",
        )
        for section in _TRAINED
    },
    f"{_ACTOR}.strategy": dict.fromkeys(
        ("torchtitan", "veomni", "automodel"), "is a backend that is not there: set strategy=fsdp or megatron"
    ),
}
"""Choices that are refused with a reason of their own."""


def check_fields(config: Config) -> Iterable[str]:
    """Problems of single fields."""
    for path, bounds in RANGES.items():
        value = get_value(config, path)
        if value is not None and not bounds.accepts(value):
            yield f"{path}: got {show(value)}, wants a value {bounds}"
    for path, choices in CHOICES.items():
        value = get_value(config, path)
        if value is None or value in choices:  # null only reaches fields that may be null
            continue
        reason = LATER.get(path, {}).get(value)
        yield f"{path}={value} {reason}" if reason else f"{path}: got {value!r}, wants {one_of(choices)}"


def one_of(choices: Iterable[str]) -> str:
    """`a, b or c`."""
    *most, last = choices
    return f"{', '.join(most)} or {last}" if most else last
