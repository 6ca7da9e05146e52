"""Does a divided model still compute what the whole one did?

Transformers' plans are names of layers: a model whose code does something in between that a plan doesn't foresee would
train on wrong numbers in silence.
"""

from __future__ import annotations

import torch
from torch import Tensor, distributed
from torch.distributed.fsdp import FSDPModule

from argosy.modeling.packed_model import SELF_CHECK_TOLERANCE
from argosy.modeling.packed_network import PackedNetwork, self_check_batch
from argosy.modeling.packing import pack
from argosy.types.errors import InternalError


def probe(network: PackedNetwork) -> Tensor:
    """Log-probs (of a critic: values) of a small fixed batch, float32 in main memory, [M]."""
    prompts, responses = self_check_batch(network.vocab_size)
    column = network.columns[0]
    with torch.no_grad():
        values = network.column_values(pack(prompts, responses, device=network.device), [column], 1.0)[column]
    return values.float().cpu()


def check_divided(before: Tensor | None, network: PackedNetwork, module: object) -> None:
    """Compare with the `probe` of the whole model, on every rank. InternalError on each if they differ on rank 0.

    Args:
        before: On rank 0; None elsewhere.
        network: The divided model.
        module: Its FSDP root, or what isn't one.
    """
    after = probe(network)
    if isinstance(module, FSDPModule):
        module.reshard()  # without a backward it would stay gathered
    difference = torch.zeros(()) if before is None else (after - before).abs().max()
    distributed.broadcast(difference, 0)
    tolerance = SELF_CHECK_TOLERANCE[network.compute_dtype]
    if not float(difference) <= tolerance:
        raise InternalError(
            f"{type(network.model).__name__}: divided over ranks it computes other numbers than whole, by "
            f"{float(difference):.2g} (allowed {tolerance:g}); set argosy.trainer.tensor_parallel_size=1 and "
            "ulysses_sequence_parallel_size=1"
        )
