"""A Hugging Face model spread over the ranks of a mesh by FSDP2, its code unchanged.

Only rank 0 reads the weights from disk. The others make a model of the same shape, whose memory isn't touched until a
layer arrives; each layer is sent and cut before the next, so that besides rank 0 none ever holds the whole model.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from argosy.modeling.attention import PACKED_ATTENTION
from argosy.modeling.loading import ModelSource, local_or_hub, resolve_dtype
from argosy.modeling.value_model import ValueModel
from argosy.trainer.backends.building import (
    build_model,
    compute_dtype_of,
    enable_checkpointing,
    layers_of,
    prepare_layers,
)
from argosy.trainer.lora import LoraAdapter, add_lora
from argosy.trainer.options import TrainerOptions
from argosy.trainer.parallel.check import check_divided, probe
from argosy.trainer.parallel.mesh import DATA, SEQUENCE, TENSOR, with_patience
from argosy.trainer.parallel.model import ParallelCritic, ParallelPolicy
from argosy.trainer.parallel.offload import parameter_policy
from argosy.types.errors import ConfigError

ParallelNetwork = ParallelPolicy | ParallelCritic


def load_on_first_rank(options: TrainerOptions) -> tuple[Any, LoraAdapter | None]:
    """The model in main memory: read and checked on rank 0, of the same shape but without values elsewhere.

    With LoRA also the adapter in it.
    """
    options = replace(options, model=replace(options.model, device="cpu"))
    if distributed.get_rank() == 0:
        built = build_model(options)
        _share_fingerprint(built.adapter)
        return built.hf_model, built.adapter
    model = _shape_of(options.model, options.value_head)
    adapter = None if options.lora is None else add_lora(model, options.lora, options.model.path)
    _share_fingerprint(adapter)
    if options.gradient_checkpointing:
        enable_checkpointing(model)
    return model, adapter


def _share_fingerprint(adapter: LoraAdapter | None) -> None:
    """Rank 0's, since the others have no weights yet."""
    if adapter is not None and distributed.get_world_size() > 1:
        held = torch.tensor(adapter.base_fingerprint)
        distributed.broadcast(held, 0)
        adapter.base_fingerprint = int(held)


def _shape_of(source: ModelSource, value_head: bool) -> Any:
    """A model as `build_model` makes it, with arbitrary weights. Buffers (rotary frequencies) are right."""
    import transformers
    from transformers.initialization import no_init_weights

    from argosy.modeling.attention import register_packed_attention

    register_packed_attention()
    overrides = {key: value for key, value in source.override_config.items() if key != "attn_implementation"}
    config = transformers.AutoConfig.from_pretrained(
        local_or_hub(source.path), trust_remote_code=source.trust_remote_code, **overrides
    )
    kind: Any = transformers.AutoModel if value_head else transformers.AutoModelForCausalLM
    with no_init_weights():
        model = kind.from_config(
            config,
            dtype=resolve_dtype(source.dtype),
            trust_remote_code=source.trust_remote_code,
            attn_implementation=PACKED_ATTENTION,
        )
    model.tie_weights()
    return ValueModel(model).eval() if value_head else model.eval()


def spread(model: Any, options: TrainerOptions, mesh: DeviceMesh) -> ParallelNetwork:
    """Cut the model over the mesh of `make_mesh`, in place, with rank 0's weights; returns its packed forward.

    Raises InternalError on every rank if a model that is divided by more than FSDP computes other numbers then.
    """
    parallel = options.parallel
    divided = parallel.tensor_parallel * parallel.sequence_parallel > 1
    before = probe(_network(model, options)) if divided and distributed.get_rank() == 0 else None
    base = getattr(model, model.base_model_prefix)
    if parallel.tensor_parallel > 1:
        from argosy.trainer.parallel.tensor import apply_tensor_parallel

        _send(model)
        apply_tensor_parallel(model, mesh[TENSOR])
    sequence = None
    if parallel.sequence_parallel > 1:
        from argosy.trainer.parallel.sequence import apply_sequence_parallel

        apply_sequence_parallel(model, mesh[SEQUENCE], tensor_parallel=parallel.tensor_parallel)
        sequence = mesh[SEQUENCE].get_group()
    device = torch.device(mesh.device_type)
    prepare_layers(model, options, device)
    network = _network(model, options, sequence, device)
    _shard(network, list(layers_of(base)), options, _shard_mesh(options, mesh))
    if divided:
        check_divided(before, network, network.module)
    return network


def _network(
    model: Any, options: TrainerOptions, sequence: ProcessGroup | None = None, device: torch.device | None = None
) -> ParallelNetwork:
    """The packed forward of a policy or a critic; without a group and a device as the model is now."""
    compute_dtype = compute_dtype_of(options)
    if isinstance(model, ValueModel):
        return ParallelCritic(model, sequence=sequence, device=device, compute_dtype=compute_dtype)
    chunk_tokens = options.log_prob_chunk_tokens
    return ParallelPolicy(
        model, sequence=sequence, device=device, compute_dtype=compute_dtype, chunk_tokens=chunk_tokens
    )


def _shard_mesh(options: TrainerOptions, mesh: DeviceMesh) -> DeviceMesh:
    """Over which ranks parameters are cut: one dimension, or (copies, shards)."""
    from torch.distributed.device_mesh import init_device_mesh

    parallel, size = options.parallel, options.fsdp.shard_size
    ranks = parallel.data_parallel * parallel.sequence_parallel
    if size in (-1, ranks):
        if parallel.sequence_parallel == 1:
            return mesh[DATA]
        return with_patience(mesh[DATA, SEQUENCE]._flatten("shards"), options.rank_timeout_s)
    if size < 1 or ranks % size:
        raise ConfigError(f"fsdp_config.fsdp_size is {size}, which doesn't divide the {ranks} ranks that share data")
    if parallel.sequence_parallel * parallel.tensor_parallel > 1:
        raise ConfigError(
            f"fsdp_config.fsdp_size={size} of {ranks} ranks goes with neither sequence nor tensor parallel; wants -1"
        )
    shards = init_device_mesh(mesh.device_type, (ranks // size, size), mesh_dim_names=("copies", "shards"))
    return with_patience(shards, options.rank_timeout_s)


def _shard(network: ParallelNetwork, layers: list[nn.Module], options: TrainerOptions, mesh: DeviceMesh) -> None:
    """FSDP2 of each layer, and of all else (embedding, last norm, head) as one unit.

    In bfloat16 a layer's parameters are gathered in bfloat16 and its gradients summed in float32. The inputs aren't
    cast: autocast does that, so that residuals, rotary angles and the head are as in one process.
    """
    policy, whole = MixedPrecisionPolicy(cast_forward_inputs=False), MixedPrecisionPolicy(cast_forward_inputs=False)
    if options.compute_dtype != "float32":
        policy = MixedPrecisionPolicy(
            param_dtype=resolve_dtype(options.compute_dtype), reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    away = parameter_policy(options.offload.parameters, network.device)
    reshard = options.fsdp.reshard_after_forward
    for layer in layers:
        _send(layer)
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard, offload_policy=away)
    _send(network.module)
    # Its backward begins right after its forward: gathering it twice would be waste.
    fully_shard(network.module, mesh=mesh, mp_policy=whole, reshard_after_forward=False, offload_policy=away)
    for module in network.module.modules():
        if isinstance(module, FSDPModule):
            # Losses are divided by the mini-batch's own denominators, so gradients are summed and not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    if options.fsdp.forward_prefetch:
        for layer, following in itertools.pairwise(layers):
            assert isinstance(layer, FSDPModule)
            assert isinstance(following, FSDPModule)
            layer.set_modules_to_forward_prefetch([following])


def _send(module: nn.Module) -> None:
    """Rank 0's parameters and buffers to all; those that are spread already are left out."""
    if distributed.get_world_size() == 1:
        return
    seen: set[int] = set()
    for tensor in [*module.parameters(), *module.buffers()]:
        if isinstance(tensor, DTensor) or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        with torch.no_grad():
            distributed.broadcast(tensor.detach(), 0)


def whole(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor | None:
    """A spread tensor in rank 0's main memory, None elsewhere. A collective, one tensor at a time."""
    full = tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()
    if distributed.get_rank() != 0:
        return None
    if dtype is not None and full.is_floating_point():
        full = full.to(dtype)
    return full.cpu() if full.device.type != "cpu" else full.clone() if full is tensor else full


def fill(target: Tensor, source: Tensor | None) -> None:
    """Rank 0's whole `source` into a spread tensor. A collective."""
    full = torch.empty(target.shape, dtype=target.dtype)
    if distributed.get_rank() == 0:
        assert source is not None
        full.copy_(source)
    if distributed.get_world_size() > 1:
        distributed.broadcast(full, 0)
    with torch.no_grad():
        if isinstance(target, DTensor):
            from torch.distributed.tensor import distribute_tensor

            piece = distribute_tensor(full.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
            target.to_local().copy_(piece.to_local())
        else:
            target.copy_(full)
