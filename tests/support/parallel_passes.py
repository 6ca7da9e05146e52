"""What one rank of a parallel pass does in tests, and the same in one process to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from argosy.modeling.loading import ModelSource, load_causal_lm
from argosy.modeling.packed_model import PackedModel
from argosy.modeling.packing import PackedBatch, pack
from argosy.modeling.value_model import PackedValueModel, ValueModel, load_value_model
from argosy.trainer.backends.compute import Compute, PolicyCompute, ValueCompute
from argosy.trainer.objective import global_normalizer
from argosy.trainer.parallel.mesh import DATA, SEQUENCE, TENSOR, ParallelOptions, make_mesh
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import InternalError
from argosy.types.ragged import Ragged
from argosy.types.records import LossConfig
from support.training import grouped_batch

Arrays = dict[str, npt.NDArray[np.float32]]

STATS = {"temperature": 0.8, "entropy": True, "sum_pi_squared": True}


@dataclass(frozen=True)
class Outcome:
    """Of one forward_backward, on one rank."""

    gradients: Arrays
    """Of the whole mini-batch, by parameter name, whole."""
    columns: Arrays
    """Per token of this rank's rows."""
    metrics: dict[str, float]
    """This data rank's shares."""
    rows: list[int]


def save_model(
    path: Path, *, family: str = "llama", heads: int = 4, kv_heads: int = 2, vocabulary: int = 260, tied: bool = True
) -> Path:
    """A tiny random model without tokenizer, whose sizes many numbers of ranks divide."""
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

    settings: Any = {
        "vocab_size": vocabulary,
        "hidden_size": 8 * heads,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 8,
        "tie_word_embeddings": tied,
        "pad_token_id": 0,
    }
    config = LlamaConfig(**settings) if family == "llama" else Qwen3Config(**settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn_like(parameter)
                parameter.copy_(3 * parameter if parameter.ndim == 2 else parameter + 0.1 * noise)
    model.save_pretrained(path)
    return path


def parallel_batch() -> TrajectoryBatch:
    """Three groups of four with all columns of a policy and a critic; id 0, which is padding, among the prompts."""
    batch = grouped_batch(returns=0.3)
    prompts = batch.ragged("prompt_ids")
    ids = prompts.values.copy()
    ids[prompts.offsets[:-1]] = 0
    batch = batch.with_column("prompt_ids", Ragged(ids, prompts.offsets))
    rng = np.random.default_rng(0)
    offsets = batch.ragged("response_ids").offsets
    for name in ("old_log_probs", "ref_log_probs"):
        batch = batch.with_column(name, Ragged(rng.normal(-5, 0.7, offsets[-1]).astype(np.float32), offsets))
    return batch


def single_pass(folder: Path, loss: LossConfig) -> Outcome:
    """The whole batch in this process."""
    batch = parallel_batch()
    if loss.loss_mode == "value":
        critic = _critic(folder)
        return _outcome(critic, ValueCompute(PackedValueModel(critic)), batch, list(range(len(batch))), loss, 1)
    model = load_causal_lm(ModelSource(str(folder), device="cpu"))
    compute = PolicyCompute(PackedModel(model, chunk_tokens=16))
    return _outcome(model, compute, batch, list(range(len(batch))), loss, 1)


@dataclass(frozen=True)
class Pass:
    """One forward_backward of a test."""

    folder: Path
    loss: LossConfig
    checkpointing: bool = False
    offload: bool = False
    """Activations are moved, from "cpu" to "cpu"."""


def rank_passes(options: ParallelOptions, passes: list[Pass]) -> list[Outcome]:
    """This rank's part of each pass, in real processes."""
    return [rank_pass(options, each) for each in passes]


def rank_pass(options: ParallelOptions, settings: Pass) -> Outcome:
    """Tensor, then sequence parallel, then FSDP over data and sequence, and a forward_backward."""
    from torch.distributed.fsdp import fully_shard

    from argosy.trainer.backends.building import enable_checkpointing
    from argosy.trainer.parallel.model import ParallelCritic, ParallelPolicy
    from argosy.trainer.parallel.offload import ActivationOffload, install_activation_offload
    from argosy.trainer.parallel.sequence import apply_sequence_parallel
    from argosy.trainer.parallel.tensor import apply_tensor_parallel

    mesh = make_mesh(options)
    folder, loss = settings.folder, settings.loss
    critic = loss.loss_mode == "value"
    model: Any = _critic(folder) if critic else load_causal_lm(ModelSource(str(folder), device="cpu"))
    if settings.checkpointing:
        enable_checkpointing(model)
    offload = ActivationOffload("cpu", threshold_bytes=512)
    if settings.offload:
        install_activation_offload(model.model, offload)
    if options.tensor_parallel > 1:
        apply_tensor_parallel(model, mesh[TENSOR])
    if options.sequence_parallel > 1:
        apply_sequence_parallel(model, mesh[SEQUENCE], tensor_parallel=options.tensor_parallel)
    sequence = mesh.get_group(SEQUENCE) if options.sequence_parallel > 1 else None
    packed: Any = ParallelCritic(model, sequence=sequence) if critic else ParallelPolicy(model, sequence=sequence)
    packed.chunk_tokens = 16
    shards = mesh[DATA, SEQUENCE]._flatten("shards")
    for layer in model.model.layers:
        fully_shard(layer, mesh=shards)
    fully_shard(packed.module, mesh=shards)
    batch = parallel_batch()
    rows = np.array_split(np.arange(len(batch)), options.data_parallel)[mesh.get_local_rank(DATA)]
    compute: Compute = ValueCompute(packed) if critic else PolicyCompute(packed)
    outcome = _outcome(model, compute, batch, rows.tolist(), loss, options.data_parallel)
    assert (offload.moved_bytes > 0) == settings.offload
    return outcome


def checks_with_errors(folder: Path, options: ParallelOptions, errors: list[float]) -> list[str]:
    """What the check says of a divided model that is off by each of the errors; "" if nothing."""
    from argosy.trainer.parallel.check import check_divided, probe
    from argosy.trainer.parallel.model import ParallelPolicy
    from argosy.trainer.parallel.tensor import apply_tensor_parallel

    model = load_causal_lm(ModelSource(str(folder), device="cpu"))
    before = probe(PackedModel(model))
    mesh = make_mesh(options)
    apply_tensor_parallel(model, mesh[TENSOR])
    policy = ParallelPolicy(model)
    said = []
    for error in errors:
        try:
            check_divided(before + error if torch.distributed.get_rank() == 0 else None, policy, policy.module)
            said.append("")
        except InternalError as failure:
            said.append(str(failure))
    return said


def saved_bytes(folder: Path, packed: PackedBatch, ranks: int = 1) -> int:
    """Bytes that autograd keeps of one forward on this rank, parameters and layout left out."""
    from argosy.trainer.parallel.model import ParallelPolicy
    from argosy.trainer.parallel.sequence import apply_sequence_parallel

    model = load_causal_lm(ModelSource(str(folder), device="cpu"))
    group = None
    if ranks > 1:
        mesh = make_mesh(ParallelOptions(ranks, sequence_parallel=ranks))
        apply_sequence_parallel(model, mesh[SEQUENCE])
        group = mesh.get_group(SEQUENCE)
    policy = ParallelPolicy(model, sequence=group)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        stats = policy.response_stats(packed, temperature=1.0)
    del stats
    return sum(kept.values())


def _critic(folder: Path) -> ValueModel:
    """With a head that isn't zero."""
    critic = load_value_model(ModelSource(str(folder), device="cpu"))
    with torch.no_grad():
        critic.score.weight.copy_(torch.linspace(-1, 1, critic.score.weight.numel())[None])
        critic.score.bias.fill_(0.1)
    return critic


def _outcome(
    model: nn.Module, compute: Any, batch: TrajectoryBatch, rows: list[int], loss: LossConfig, data_parallel: int
) -> Outcome:
    from torch.distributed.tensor import DTensor

    compute.begin()
    mine = np.asarray(rows, np.int64)
    metrics = compute.micro_batch(batch, mine, loss, global_normalizer(batch), 1.0, float(data_parallel))
    gradients: Arrays = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        gradients[name] = (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient).numpy()
    network = compute._model
    packed = pack(batch.ragged("prompt_ids").take(mine), batch.ragged("response_ids").take(mine))
    with torch.no_grad():
        columns = network.column_values(packed, network.columns, STATS["temperature"])
    return Outcome(gradients, {name: values.numpy() for name, values in columns.items()}, metrics, rows)
