"""`critic.*`: the value model of PPO, a trainer of its own. What is null here is taken from the actor, as in verl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.config.schema.optim import EngineConfig, OptimConfig


@dataclass(frozen=True)
class CriticModelConfig:
    """Which model it starts from."""

    path: str | None = None
    """Folder or hub name: a saved critic, or a language model that gets a new value head (zeros). null: the actor's."""
    tokenizer_path: str | None = None
    """Whose tokenizer goes into the critic's exports; null takes the actor's. Token ids must be those of the actor."""
    override_config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the model's config.json to replace when it is loaded."""
    trust_remote_code: bool | None = None
    """Let transformers run Python code that comes with the model's folder; null takes the actor's."""
    enable_gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: less memory for about a third more time."""
    enable_activation_offload: bool = False
    """Keep large tensors of the forward in main memory until the backward needs them, as the actor's key."""


@dataclass(frozen=True)
class CriticOptimConfig(OptimConfig):
    """As the actor's, with a larger learning rate."""

    lr: float = 1e-5
    """Peak learning rate, reached when the warm-up ends."""


@dataclass(frozen=True)
class CriticConfig:
    """The critic. Sizes are global and counted in prompts; `*_per_gpu` sizes are local to a process."""

    enable: bool | None = None
    """Whether it runs. null: iff algorithm.adv_estimator reads values, as gae does; anything else is refused."""
    model: CriticModelConfig = field(default_factory=CriticModelConfig)
    """Which model it starts from."""
    optim: CriticOptimConfig = field(default_factory=CriticOptimConfig)
    """Optimizer and schedule."""
    ppo_mini_batch_size: int | None = None
    """Prompts per optimizer step; × rollout.n sequences. null takes the actor's."""
    ppo_micro_batch_size_per_gpu: int | None = None
    """Sequences per forward/backward; changes memory, not the result. null: by ppo_max_token_len_per_gpu."""
    forward_micro_batch_size_per_gpu: int | None = None
    """Sequences per forward that computes values; null takes ppo_micro_batch_size_per_gpu."""
    use_dynamic_bsz: bool | None = None
    """Form micro-batches by tokens in place of a fixed number of sequences; null takes the actor's."""
    ppo_max_token_len_per_gpu: int = 32768
    """Token budget of a micro-batch while use_dynamic_bsz is on or no micro-batch size is given."""
    forward_max_token_len_per_gpu: int | None = None
    """Token budget of a forward that computes values; null takes ppo_max_token_len_per_gpu."""
    ppo_epochs: int | None = None
    """Passes over each step's batch; null takes the actor's."""
    shuffle: bool | None = None
    """Shuffle the sequences before they are split into mini-batches, anew in each pass; null takes the actor's."""
    data_loader_seed: int | None = None
    """Seed of that shuffling; null takes argosy.seed."""
    cliprange_value: float = 0.5
    """A value may move this far from what it was before the update, in units of the return; beyond it, only an error
    that the move makes larger still counts."""
    loss_agg_mode: str | None = None
    """Token losses to one number, over the global mini-batch, as the actor's key; null takes the actor's."""
    grad_clip: float = 1.0
    """Bound of the gradient's global norm. A step whose norm isn't finite is skipped."""
    fsdp_config: EngineConfig = field(default_factory=EngineConfig)
    """How the training engine computes."""
    ulysses_sequence_parallel_size: int | None = None
    """Ranks of the critic that divide the tokens of each packed batch; null takes the actor's."""
