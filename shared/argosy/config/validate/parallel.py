"""Do the trainer's ranks divide as they should: the world by the parallel sizes, the model's heads by those?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from argosy.config.schema import Config
from argosy.modeling.heads import check_heads
from argosy.types.errors import InvalidInputError

_TENSOR = "argosy.trainer.tensor_parallel_size"
_SEQUENCE = "ulysses_sequence_parallel_size"


def check_parallel_sizes(config: Config) -> Iterator[str]:
    """Tensor × sequence parallel divides the ranks."""
    ranks, tensor = config.trainer.n_gpus_per_node, config.argosy.trainer.tensor_parallel_size
    for key, _, sequence in _trained(config):
        together = tensor * sequence
        if ranks % together:
            yield (
                f"{_TENSOR}={tensor} × {key}.{_SEQUENCE}={sequence} = {together} doesn't divide "
                f"trainer.n_gpus_per_node={ranks}; wants a multiple of {together} ranks, or smaller sizes"
            )


def check_compilation(config: Config) -> Iterator[str]:
    """PyTorch 2.13 can't trace layers whose weights are divided (RecursionError in its tracer)."""
    tensor = config.argosy.trainer.tensor_parallel_size
    if config.actor_rollout_ref.actor.use_torch_compile and tensor > 1:
        yield (
            f"actor_rollout_ref.actor.use_torch_compile: got true with {_TENSOR}={tensor}, which torch.compile can't "
            f"trace; set it false, or {_TENSOR}=1"
        )


def check_model_heads(config: Config) -> Iterator[str]:
    """The sizes divide the attention heads in the model's config.json. A model on the hub is looked at when loaded."""
    tensor = config.argosy.trainer.tensor_parallel_size
    for key, folder, sequence in _trained(config):
        heads = _heads(folder) if tensor * sequence > 1 else None
        if heads is None:
            continue
        try:
            check_heads(*heads, tensor_parallel=tensor, sequence_parallel=sequence)
        except InvalidInputError as error:
            yield f"{_TENSOR}={tensor}, {key}.{_SEQUENCE}={sequence}: {error} (in {folder}/config.json)"


def _trained(config: Config) -> Iterator[tuple[str, str, int]]:
    """Section, model path and sequence parallel size of policy and critic."""
    policy = config.actor_rollout_ref
    yield "actor_rollout_ref.actor", policy.model.path, policy.actor.ulysses_sequence_parallel_size
    if config.needs_critic:
        critic = config.full_critic
        yield "critic", critic.model.path or "", critic.ulysses_sequence_parallel_size or 1


def _heads(folder: str) -> tuple[int, int] | None:
    """Attention and key-value heads; None where a config.json doesn't say."""
    try:
        fields: Any = json.loads((Path(folder).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # said by those who look at files
        return None
    fields = fields.get("text_config", fields) if isinstance(fields, dict) else {}
    heads = fields.get("num_attention_heads")
    kv_heads = fields.get("num_key_value_heads") or heads
    return (heads, kv_heads) if isinstance(heads, int) and isinstance(kv_heads, int) else None


def check_ranks(config: Config) -> Iterator[str]:
    """The backend can have that many ranks, and copies of the model divide them."""
    ranks, backend = config.trainer.n_gpus_per_node, config.argosy.trainer.backend
    if backend == "single" and ranks > 1:
        yield (
            f"argosy.trainer.backend: got single, which is one process, with trainer.n_gpus_per_node={ranks}; wants "
            "auto or fsdp, or one rank"
        )
    if actor_backend(config) == "megatron":
        yield from _check_megatron(config)
    yield from _check_shares(config)
    engines = {"actor_rollout_ref.actor": config.actor_rollout_ref.actor.fsdp_config}
    if config.needs_critic:
        engines["critic"] = config.full_critic.fsdp_config
    for key, engine in engines.items():
        size = engine.fsdp_size
        if size != -1 and ranks % size:
            yield (
                f"{key}.fsdp_config.fsdp_size: got {size}, wants -1 or a size that divides "
                f"trainer.n_gpus_per_node={ranks}"
            )
    if ranks > 1 and config.needs_critic and config.argosy.placement == "inprocess":
        yield (
            f"trainer.n_gpus_per_node: got {ranks} with a critic and argosy.placement=inprocess; one process can't be "
            "a rank of both; set argosy.placement=local"
        )


def _check_shares(config: Config) -> Iterator[str]:
    """Every rank can have a sequence of its own in a mini-batch, or it would only ever compute fillers."""
    ranks, n = config.trainer.n_gpus_per_node, config.actor_rollout_ref.rollout.n
    minis = {"actor_rollout_ref.actor": config.actor_rollout_ref.actor.ppo_mini_batch_size}
    if config.needs_critic:
        minis["critic"] = config.full_critic.ppo_mini_batch_size or 0
    for key, _, sequence in _trained(config):
        copies = ranks // (config.argosy.trainer.tensor_parallel_size * sequence)
        mini = minis[key]
        if copies > mini * n:
            yield (
                f"trainer.n_gpus_per_node: got {ranks}, which is {copies} shares of each mini-batch of {mini * n} "
                f"sequences ({key}.ppo_mini_batch_size {mini} × rollout.n {n}): some ranks would never have one; "
                f"wants at most {mini * n} shares"
            )


def actor_backend(config: Config) -> str:
    """The policy's backend as asked for: by its own key, else by verl's strategy."""
    asked = config.argosy.trainer.backend
    return asked if asked != "auto" else config.actor_rollout_ref.actor.strategy


def _check_megatron(config: Config) -> Iterator[str]:
    """What megatron-core's layers can't do here."""
    policy = config.actor_rollout_ref
    engine = policy.actor.fsdp_config
    lacking = (
        ("actor_rollout_ref.actor.fsdp_config.dtype", engine.dtype, "float32"),
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size", policy.actor.ulysses_sequence_parallel_size, 1),
        ("actor_rollout_ref.actor.fsdp_config.param_offload", engine.param_offload, False),
        ("actor_rollout_ref.actor.fsdp_config.optimizer_offload", engine.optimizer_offload, False),
        ("actor_rollout_ref.model.enable_activation_offload", policy.model.enable_activation_offload, False),
        ("actor_rollout_ref.actor.use_torch_compile", policy.actor.use_torch_compile, False),
        ("actor_rollout_ref.model.lora_rank", policy.model.lora_rank, 0),
    )
    for path, given, wanted in lacking:
        if given != wanted:
            yield (
                f"{path}: got {given} with the megatron backend, which has only {wanted}; "
                "actor_rollout_ref.actor.strategy=fsdp2 has both"
            )
