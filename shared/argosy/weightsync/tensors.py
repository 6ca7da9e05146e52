"""Torch tensors as bytes and back; torch is imported only when one is touched."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from argosy.types.errors import InvalidInputError
from argosy.weightsync.manifest import DTYPE_WIDTHS, TensorShape

if TYPE_CHECKING:
    import torch

if sys.byteorder != "little":
    raise ImportError("argosy.weightsync sends little-endian bytes as they lie in memory; this machine is big-endian")

ByteArray = npt.NDArray[np.uint8]


def dtype_name(tensor: torch.Tensor) -> str:
    """torch's name without the prefix. Raises InvalidInputError on one that a manifest can't carry."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPE_WIDTHS:
        raise InvalidInputError(f"weights of dtype {name} can't be sent; sendable are {sorted(DTYPE_WIDTHS)}")
    return name


def bytes_of(tensor: torch.Tensor) -> ByteArray:
    """The contiguous little-endian bytes, [size_bytes] uint8; a view without a copy where the tensor allows it."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1).cpu()
    view: ByteArray = flat.view(torch.uint8).numpy()
    return view


def tensor_over(data: ByteArray, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """A tensor of the given shape that shares the memory of `data` [size_bytes]."""
    import torch

    kind: Any = getattr(torch, dtype)
    if data.size == 0:
        return torch.empty(shape, dtype=kind)
    return torch.from_numpy(data).view(kind).reshape(shape)


def find_tied(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Redundant name → owner name for tensors that share their whole storage; the owner comes first in `state`.

    Meant for `model.state_dict()` (which keeps storages shared), not for copies.
    """
    owners: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    for name, tensor in state.items():
        if tensor.numel() == 0:
            continue
        place = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        owner = owners.setdefault(place, name)
        if owner != name:
            tied[name] = owner
    return tied


def shapes_of(state: Mapping[str, torch.Tensor]) -> dict[str, TensorShape]:
    """What a receiver with these tensors expects of a manifest."""
    return {name: TensorShape(tuple(tensor.shape), dtype_name(tensor)) for name, tensor in state.items()}
