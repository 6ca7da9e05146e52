"""`….optim.*`: optimizer and learning-rate schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OPTIMIZERS = (("AdamW", "torch.optim"), ("AdamW8bit", "bitsandbytes.optim"), ("AdamW8bit", "torchao.optim"))
"""Known pairs of optimizer and optimizer_impl."""


@dataclass(frozen=True)
class OptimConfig:
    """AdamW and its schedule. The schedule moves once per training step, not once per mini-batch."""

    optimizer: str = "AdamW"
    """"AdamW" ("adamw" and "adam" are the same), or "AdamW8bit" with 8-bit moments: a quarter of their memory."""
    optimizer_impl: str = "torch.optim"
    """Whose: "torch.optim" of AdamW; "bitsandbytes.optim" or "torchao.optim" of AdamW8bit, where that is installed."""
    override_optimizer_config: Mapping[str, Any] | None = None
    """More settings of the optimizer, such as {amsgrad: true}, over the keys of this section; null is none."""
    lr: float = 1e-6
    """Peak learning rate, reached when the warm-up ends."""
    weight_decay: float = 0.01
    """Decoupled weight decay; 0 turns it off."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""
    eps: float = 1e-8
    """AdamW's ε, added to the root of the second moment."""
    lr_warmup_steps: int = -1
    """Steps of linear warm-up from 0; -1 takes lr_warmup_steps_ratio."""
    lr_warmup_steps_ratio: float = 0.0
    """Share of the run's steps that is warm-up, used while lr_warmup_steps is -1; 0 means none."""
    lr_scheduler_type: str = "constant"
    """After the warm-up: "constant", "linear", "cosine" or "wsd" (stable, then decay over the last tenth)."""
    min_lr_ratio: float = 0.0
    """Where a falling schedule ends, as a share of lr; 0 falls to nothing."""
    num_cycles: float = 0.5
    """Cosine periods between warm-up and end; 0.5 falls once from lr to min_lr_ratio × lr."""
    total_training_steps: int = -1
    """Length of the schedule in steps; -1 takes the run's own number of steps."""

    @property
    def kind(self) -> tuple[str, str]:
        """(optimizer, optimizer_impl), with verl's older spellings of AdamW."""
        return "AdamW" if self.optimizer in ("adam", "adamw") else self.optimizer, self.optimizer_impl


@dataclass(frozen=True)
class EngineConfig:
    """How the training engine computes (verl's name for this section is fsdp_config)."""

    model_dtype: str = "fp32"
    """Type of the master weights and of the optimizer's state: "fp32" only, since Adam in bf16 loses small steps."""
    dtype: str = "float32"
    """Type of forward and backward: "float32", or "bfloat16" with fp32 master weights. (verl: bfloat16; here the
    default equals argosy.rollout.dtype's, so that the two sides' log-probs agree.)"""
    param_offload: bool = False
    """Keep shards of parameters and gradients in main memory; each layer's are copied to the GPU for its forward and
    backward, and the optimizer steps on the CPU. Without a GPU they are there already."""
    optimizer_offload: bool = False
    """Keep the optimizer's state in main memory between steps. Without a GPU it is there already."""
    fsdp_size: int = -1
    """Ranks that hold one copy of parameters and optimizer state between them; -1: all. Fewer hold several copies: more
    memory, less to exchange. It must divide trainer.n_gpus_per_node."""
    reshard_after_forward: bool = True
    """Drop a layer's gathered parameters after its forward, and gather them again for its backward."""
    forward_prefetch: bool = False
    """Begin to gather the next layer's parameters before a layer's forward."""
