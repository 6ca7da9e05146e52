"""Tensor parallelism: each rank holds a part of every matrix of a Hugging Face model (arXiv:1909.08053, section 3).

Transformers says itself how each module may be cut (`model.tp_plan`); PyTorch's `parallelize_module` cuts it, without a
change to the model's code:

- q, k, v, gate and up by output ("colwise"): a rank computes whole heads, so attention runs as it is, on fewer heads;
- o and down by input ("rowwise"), their results summed over ranks;
- embedding and output head by rows of the vocabulary, if the number of ranks divides it. Otherwise both stay whole on
  each rank: FSDP can't put unevenly cut matrices together again for a checkpoint;
- the rest (norms, value heads) whole on each rank.

Every parameter becomes a DTensor, so that one optimizer and one gradient norm serve them all. Data parallelism comes on
top: `fully_shard` with the mesh's other dimensions.
"""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from argosy.modeling.heads import check_heads
from argosy.types.errors import InvalidInputError

logger = logging.getLogger(__name__)

_HEADS_DIM = 2
"""Of a tensor [1, N, H, D], as a norm of each head's query or key sees it."""

STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    "replicated_with_grad_allreduce": lambda: Whole(Shard(_HEADS_DIM)),
}
"""Transformers' names → how PyTorch does it. Experts and latent attention have others, which aren't here yet."""


class Whole(ParallelStyle):
    """Every rank holds the module's parameters whole.

    Args:
        layout: What each rank's input is: the same on all (Replicate), or its part along a dimension (Shard). With a
            part, the gradient of the parameters is the sum over ranks, which the DTensor sees to.
    """

    def __init__(self, layout: Placement | None = None) -> None:
        super().__init__()
        self._layout = layout or Replicate()

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, _replicate, self._to_dtensor, _to_local)  # type: ignore[arg-type]

    def _to_dtensor(self, module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
        if isinstance(self._layout, Shard) and inputs[0].ndim != _HEADS_DIM + 2:
            raise InvalidInputError(
                f"{type(module).__name__} gets an input of {inputs[0].ndim} dimensions, where tensor parallelism "
                "expects [1, rows, heads, head size]: this model can't be trained tensor parallel"
            )
        first = DTensor.from_local(inputs[0], mesh, (self._layout,), run_check=False)
        return (first, *inputs[1:])


def _replicate(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for key, parameter in list(module.named_parameters(recurse=False)):
        whole = distribute_tensor(parameter.detach(), mesh, (Replicate(),))
        module.register_parameter(key, nn.Parameter(whole, requires_grad=parameter.requires_grad))


def _to_local(module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
    return output.to_local() if isinstance(output, DTensor) else output


def apply_tensor_parallel(model: Any, mesh: DeviceMesh) -> None:
    """Cut a transformers causal LM in place over a one-dimensional mesh. Do it before `fully_shard`.

    All ranks must hold equal weights. Buffers stay as they are.

    Raises:
        InvalidInputError: heads that the number of ranks doesn't divide, or a model that transformers can't cut.
    """
    config = model.config.get_text_config()
    check_heads(config.num_attention_heads, config.num_key_value_heads, tensor_parallel=mesh.size())
    plan = tensor_parallel_plan(model, mesh.size())
    owners = tied_to_input_embedding(model)
    parallelize_module(model, mesh, plan)
    for module in owners:  # each got a parameter of its own
        module.weight = model.get_input_embeddings().weight


def tensor_parallel_plan(model: Any, size: int) -> dict[str, ParallelStyle]:
    """Module name → style, for every module with parameters of its own.

    Args:
        model: A transformers causal LM, or a `ValueModel`.
        size: Number of ranks.
    """
    prefix = model.base_model_prefix
    base = getattr(model, prefix)
    named: dict[str, str] = {f"{prefix}.{name}": style for name, style in (base.tp_plan or {}).items()}
    named |= getattr(model, "tp_plan", None) or {}  # a causal LM's says about its head, too
    if "colwise" not in named.values():
        raise InvalidInputError(
            f"{type(model).__name__} has no tensor-parallel plan in transformers; set "
            "argosy.trainer.tensor_parallel_size=1 (FSDP shards it all the same)"
        )
    vocabulary = _vocabulary_modules(model, size)
    plan: dict[str, ParallelStyle] = {}
    divided = 0
    for name, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is None:
            continue
        style = next((style for pattern, style in named.items() if fnmatch.fnmatchcase(name, pattern)), None)
        divided += style == "colwise"
        if style is None or module in vocabulary:
            plan[name] = Whole()
        elif style in STYLES:
            plan[name] = STYLES[style]()
        else:
            raise InvalidInputError(
                f"{type(model).__name__} wants tensor-parallel style {style!r} for {name}, which isn't there; known: "
                f"{', '.join(STYLES)}"
            )
    if not divided:  # an adapter's layers, say, are called otherwise
        raise InvalidInputError(f"none of the layers of this {type(model).__name__} is in its tensor-parallel plan")
    return plan


def _vocabulary_modules(model: Any, size: int) -> list[nn.Module]:
    """Embedding and output head if they must stay whole: if `size` doesn't divide the vocabulary."""
    embedding = model.get_input_embeddings()
    rows = embedding.weight.shape[0]
    if rows % size == 0:
        return []
    logger.info("%d ranks don't divide the vocabulary of %d: embedding and head stay whole on each", size, rows)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return [embedding] if head is None else [embedding, head]


def tied_to_input_embedding(model: Any) -> list[nn.Module]:
    """Other modules whose weight is the input embedding's: the output head of a model with tied embeddings."""
    embedding = model.get_input_embeddings()
    return [m for m in model.modules() if m is not embedding and getattr(m, "weight", None) is embedding.weight]


def local_weight(weight: Tensor) -> Tensor:
    """This rank's part of a weight, differentiable; a plain tensor stays."""
    return weight.to_local() if isinstance(weight, DTensor) else weight
