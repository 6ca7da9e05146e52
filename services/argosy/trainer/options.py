"""What a trainer needs to know, free of the configuration tree, so that a core can be built in a test in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.modeling.loading import ModelSource
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.trainer.export import DEFAULT_SHARD_SIZE
from argosy.trainer.parallel.mesh import ParallelOptions
from argosy.trainer.schedule import Schedule
from argosy.types.errors import ConfigError
from argosy.weightsync.transports.base import SendOptions


@dataclass(frozen=True, slots=True)
class OptimizerOptions:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101), by default with all parameters in one group, as in verl."""

    schedule: Schedule = field(default_factory=lambda: Schedule(1e-6))
    optimizer: str = "AdamW"
    """With optimizer_impl a key of `argosy.trainer.optimizer_kinds.OPTIMIZERS`."""
    optimizer_impl: str = "torch.optim"
    override: Mapping[str, Any] = field(default_factory=dict)
    """More settings of that optimizer, over those below."""
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    no_decay_1d: bool = False
    """Leave norms, biases and embeddings without weight decay."""
    grad_clip: float = 1.0
    """Bound of the gradient's global norm; 0 or less leaves gradients as they are."""
    max_skipped_steps: int = 3
    """Optimizer steps in a row that may be skipped for a norm that isn't finite; the next one ends the run."""


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """A low-rank adapter that trains in place of the weights (`argosy.trainer.lora`)."""

    rank: int
    """Of the update B·A; 0 takes that of `adapter_path`."""
    alpha: float = 16
    """The update is multiplied by alpha/rank. An adapter from `adapter_path` has its own."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Names (or name endings) of linear layers, or a regular expression; "all-linear": all but the output head."""
    exclude_modules: str | tuple[str, ...] | None = None
    """Names, or a regular expression, of layers to leave out."""
    adapter_path: str | None = None
    """Folder of an adapter, in peft's format, to go on from."""
    seed: int = 0
    """Of the first values of A."""

    def __post_init__(self) -> None:
        if self.rank < 0 or (self.rank == 0 and self.adapter_path is None) or self.alpha <= 0:
            raise ConfigError(f"LoRA needs lora_rank ≥ 1 and lora_alpha > 0, got {self.rank} and {self.alpha}")


@dataclass(frozen=True, slots=True)
class FsdpOptions:
    """How parameters are sharded over data and sequence ranks (FSDP2)."""

    shard_size: int = -1
    """Ranks that hold one copy of the parameters between them; -1: all. Fewer: copies, kept equal (HSDP)."""
    reshard_after_forward: bool = True
    """Drop a layer's gathered parameters after its forward and gather them again for its backward."""
    forward_prefetch: bool = False
    """Begin to gather the next layer's parameters before this layer's forward."""


@dataclass(frozen=True, slots=True)
class OffloadOptions:
    """What is in main memory while a GPU doesn't need it (`argosy.trainer.parallel.offload`)."""

    parameters: bool = False
    """Parameters and gradients, with the fsdp backend; the optimizer then steps on the CPU."""
    optimizer: bool = False
    """The optimizer's state, between steps."""
    activations: bool = False
    """What the backward pass needs, from forward to backward."""


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """One trainer process."""

    model: ModelSource
    """Parameters are held in float32 (master weights, case E7), whatever compute_dtype is."""
    tokenizer_path: str | None = None
    """Whose tokenizer goes into an export; None: the model folder's."""
    chat_template: str | None = None
    """Jinja source that goes into an export in place of the tokenizer's own."""
    lora: LoraOptions | None = None
    """Train a low-rank adapter; None: all weights."""
    value_head: bool = False
    """Whether it is a critic: one value per token in place of log-probs (`argosy.modeling.value_model`)."""
    backend: str = "single"
    """A key of `argosy.trainer.backends.BACKENDS`."""
    compute_dtype: str = "float32"
    """Of forward and backward: "float32", or "bfloat16" (autocast over the master weights)."""
    gradient_checkpointing: bool = False
    log_prob_chunk_tokens: int = 1024
    """Response tokens whose logits exist at one time."""
    update_limit: MicroBatchLimit = field(default_factory=lambda: MicroBatchLimit(max_tokens=16384))
    log_prob_limit: MicroBatchLimit = field(default_factory=lambda: MicroBatchLimit(max_tokens=16384))
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    report_entropy: bool = False
    """Report actor/entropy even if it isn't part of the loss."""
    max_shard_size: str = DEFAULT_SHARD_SIZE
    """Largest weights file of an export."""
    publish_dtype: str = "float32"
    """Published weights are cast to it."""
    send: SendOptions = field(default_factory=SendOptions)
    """How published weights are sent."""
    threads: int = 0
    """PyTorch's intra-op threads; 0 leaves PyTorch's own choice."""

    parallel: ParallelOptions = field(default_factory=ParallelOptions)
    """Ranks of this trainer, and what they share."""
    rank_timeout_s: float = 600.0
    """Of one collective of the ranks."""
    fsdp: FsdpOptions = field(default_factory=FsdpOptions)
    offload: OffloadOptions = field(default_factory=OffloadOptions)
    compile_layers: bool = False
    """`torch.compile` of each layer (`argosy.trainer.parallel.compile`)."""
    native_kernels: bool = True
    """The single backend computes in bfloat16 by the compiled library where it can run (`argosy.modeling.native`)."""

    deterministic: bool = False
    """PyTorch's repeatable kernels, on every rank."""

    def __post_init__(self) -> None:
        if self.lora is not None and self.value_head:
            raise ConfigError("LoRA of a critic is not there: its value head would not train")
        if self.model.dtype not in ("float32", "float64"):
            raise ConfigError(
                f"master weights in {self.model.dtype} would lose small updates (case E7); use float32 and set the "
                "compute dtype instead"
            )
