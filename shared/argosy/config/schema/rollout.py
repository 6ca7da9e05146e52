"""`actor_rollout_ref.rollout.*`: how responses are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.config.schema.agents import AgentConfig, MultiTurnConfig


@dataclass(frozen=True)
class ValKwargs:
    """Sampling during validation."""

    do_sample: bool = False
    """false decodes greedily, and then the other sampling keys don't matter."""
    n: int = 1
    """Responses per validation prompt; more than 1 needs do_sample=true."""
    temperature: float = 0.0
    """Temperature while do_sample is on; 0 is greedy."""
    top_k: int = -1
    """Sample among the k most likely tokens; -1 (or 0) among all."""
    top_p: float = 1.0
    """Sample among the fewest tokens that hold this probability; 1 among all."""


@dataclass(frozen=True)
class RolloutConfig:
    """Sampling for training, and how old log-probs are computed."""

    name: str = "hf"
    """The engine: "hf" is the embedded one, for any Hugging Face causal LM on CPU or GPU; "vllm" and "sglang" need an
    interpreter that has them (argosy.services.rollout.python); "simulated" has no model."""
    n: int = 1
    """Responses per prompt: the group's size. Group estimators (grpo) need at least 2."""
    do_sample: bool = True
    """false decodes the training responses greedily."""
    temperature: float = 1.0
    """Logits are divided by it, in sampling and in every log-prob. Above 0."""
    top_k: int = -1
    """Sample among the k most likely tokens; -1 (or 0) among all."""
    top_p: float = 1.0
    """Sample among the fewest tokens that hold this probability; 1 among all."""
    repetition_penalty: float = 1.0
    """Logits of tokens already seen are divided by it (multiplied where negative); 1 is off."""
    ignore_eos: bool = False
    """Go on after the end token until max_response_length: for benchmarks."""
    max_model_len: int | None = None
    """Most tokens of prompt and response together; null: data.max_prompt_length + data.max_response_length."""
    tensor_model_parallel_size: int = 1
    """Processes of one rollout server that divide each matrix (vllm)."""
    gpu_memory_utilization: float | None = None
    """Share of a device's memory that vllm takes, above 0 and at most 1. null: 0.5 on GPUs; on CPUs its cache is
    just as large as argosy.rollout.slot_count sequences of max_model_len need."""
    enforce_eager: bool | None = None
    """Whether vllm runs without captured graphs and compilation: slower steps, a start in seconds. null: on CPUs."""
    enable_chunked_prefill: bool = True
    """Whether vllm computes a long prompt in pieces, between decode steps."""
    enable_prefix_caching: bool = True
    """Whether vllm computes equal beginnings of prompts once. (The embedded engine always does.)"""
    engine_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """More arguments of an engine, as {vllm: {NAME: VALUE}}, by the names of vLLM's AsyncEngineArgs."""
    log_prob_micro_batch_size_per_gpu: int | None = None
    """Sequences per forward when the trainer computes old log-probs; null: by log_prob_max_token_len_per_gpu."""
    log_prob_use_dynamic_bsz: bool = False
    """Form those micro-batches by tokens in place of a fixed number of sequences."""
    log_prob_max_token_len_per_gpu: int = 16384
    """Token budget of such a forward while log_prob_use_dynamic_bsz is on or no micro-batch size is given."""
    val_kwargs: ValKwargs = field(default_factory=ValKwargs)
    """Sampling during validation."""
    multi_turn: MultiTurnConfig = field(default_factory=MultiTurnConfig)
    """Turns with tools and simulated users."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """Which agent loop answers."""

    @property
    def uses_agents(self) -> bool:
        """Whether samples are led by agent loops at all."""
        own = self.agent.default_agent_loop not in (None, "single_turn_agent") or self.agent.agent_loop_config_path
        return self.multi_turn.enable or bool(own)
