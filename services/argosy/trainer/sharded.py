"""Numbers of tensors that may be spread over ranks: norms, counts, and the pieces themselves.

All functions take plain tensors and DTensors alike. With DTensors they are collectives: every rank calls them with the
same tensors in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, distributed
from torch.distributed import ReduceOp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

_Key = tuple[DeviceMesh, tuple[int, ...]]


def local(tensor: Tensor) -> Tensor:
    """This rank's piece, sharing memory; a plain tensor is its own."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def global_norm(tensors: Sequence[Tensor], norm_type: float = 2.0) -> Tensor:
    """Norm of all elements of all tensors of all ranks, as one plain scalar that is equal on every rank (case E8).

    A shard's own norm says nothing: two ranks with gradients [3, 0] and [0, 4] have the norm 5. An empty shard counts
    as 0; NaN or inf on any rank is NaN or inf on all.

    Args:
        tensors: Of any shapes, each plain or a DTensor.
        norm_type: p ≥ 1 of (Σ |x|^p)^(1/p), or inf for the largest |x|.
    """
    if not any(isinstance(tensor, DTensor) for tensor in tensors):
        norm: Tensor = torch.nn.utils.get_total_norm(tensors, norm_type)
        return norm
    largest = math.isinf(norm_type)
    found = [_reduced(pieces, key, norm_type) for key, pieces in _by_sharding(tensors).items()]
    powers = torch.stack([power.to(found[0].device) for power in found])
    return powers.amax() if largest else powers.sum() ** (1.0 / norm_type)


def total_over_ranks(counts: Sequence[float], tensors: Sequence[Tensor]) -> list[float]:
    """Sums over the ranks that hold pieces of the tensors; the counts themselves if those are plain."""
    sharded = [tensor for tensor in tensors if isinstance(tensor, DTensor)]
    if not sharded:
        return list(counts)
    total = torch.tensor(counts, dtype=torch.float64, device=sharded[0].device.type)
    distributed.all_reduce(total)
    return [float(value) for value in total]


def _by_sharding(tensors: Sequence[Tensor]) -> dict[_Key | None, list[Tensor]]:
    """Local pieces, by the mesh dimensions over which they must be summed; None: whole here."""
    groups: dict[_Key | None, list[Tensor]] = {}
    for tensor in tensors:
        key = None
        if isinstance(tensor, DTensor):
            dims = tuple(place for place, part in enumerate(tensor.placements) if not part.is_replicate())
            key = (tensor.device_mesh, dims)
        groups.setdefault(key, []).append(local(tensor))
    return groups


def _reduced(pieces: list[Tensor], key: _Key | None, norm_type: float) -> Tensor:
    """Σ |x|^p (or the largest |x|) of some pieces over the ranks that share them, a scalar."""
    largest = math.isinf(norm_type)
    filled = [piece for piece in pieces if piece.numel()]
    power = torch.zeros((), device=pieces[0].device, dtype=torch.promote_types(pieces[0].dtype, torch.float32))
    if filled:
        norms = torch.stack([norm.to(power.dtype) for norm in torch._foreach_norm(filled, norm_type)])
        power = norms.amax() if largest else (norms**norm_type).sum()
    if key is None:
        return power
    # A largest of NaN and a number is either, by the library's whim: NaN goes as inf, with its own sum beside it.
    nans = torch.isnan(power).to(power.dtype)
    power = torch.nan_to_num(power, nan=math.inf, posinf=math.inf) if largest else power
    mesh, dims = key
    for dim in dims:
        distributed.all_reduce(power, ReduceOp.MAX if largest else ReduceOp.SUM, mesh.get_group(dim))
        if largest:
            distributed.all_reduce(nans, ReduceOp.SUM, mesh.get_group(dim))
    return torch.where(nans > 0, torch.nan, power) if largest else power
