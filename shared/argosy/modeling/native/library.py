"""The library's structures, field for field, its functions, and the memory that it works in."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from argosy.native.compiler import AVX512, NativeSource, load

SOURCE = NativeSource(
    Path(__file__).with_name("training.cpp"),
    "the trainer's compiled layers",
    AVX512 | {"avx512_bf16", "amx_tile", "amx_bf16"},
)
WIDTH = 32
"""Sizes of matrices, and of attention heads, are multiples of it."""
MOST_HEAD_SIZE = 256

_HUGE_PAGE = 2 << 20

_Pointer = ctypes.c_void_p
_Size = ctypes.c_int64


class SegmentStruct(ctypes.Structure):
    """ArgosySegment."""

    _fields_ = [("start", _Size), ("length", _Size), ("prefix", _Size)]


class AttentionStruct(ctypes.Structure):
    """ArgosyAttention."""

    _fields_ = [
        ("heads", _Size),
        ("kv_heads", _Size),
        ("size", _Size),
        ("scaling", ctypes.c_float),
        ("cos", _Pointer),
        ("sin", _Pointer),
        ("segments", _Pointer),
        ("groups", _Pointer),
        ("group_count", _Size),
        ("longest", _Size),
    ]


class WeightsStruct(ctypes.Structure):
    """ArgosyLayerWeights: q, k, v, output, gate, up, down, two norms, and the same of gradients."""

    _fields_ = [("weights", _Pointer * 9), ("gradients", _Pointer * 9)]


class LayerStruct(ctypes.Structure):
    """ArgosyLayer."""

    _fields_ = [
        ("rows", _Size),
        ("hidden", _Size),
        ("inner", _Size),
        ("threads", _Size),
        ("eps", ctypes.c_float),
        ("attention", AttentionStruct),
        ("weights", WeightsStruct),
        ("projected", _Pointer),
        ("mixed", _Pointer),
        ("opened", _Pointer),
        ("normalizers", _Pointer),
        ("workspace", _Pointer),
    ]


class HeadStruct(ctypes.Structure):
    """ArgosyHead."""

    _fields_ = [
        ("rows", _Size),
        ("hidden", _Size),
        ("vocab", _Size),
        ("threads", _Size),
        ("temperature", ctypes.c_float),
        ("states", _Pointer),
        ("weight", _Pointer),
        ("targets", _Pointer),
        ("log_probs", _Pointer),
        ("normalizers", _Pointer),
        ("entropies", _Pointer),
        ("squares", _Pointer),
        ("of_log_probs", _Pointer),
        ("of_entropies", _Pointer),
        ("of_states", _Pointer),
        ("of_weight", _Pointer),
        ("workspace", _Pointer),
    ]


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """The library; None where it can't be made or run."""
    library = load(SOURCE)
    if library is None:
        return None
    library.argosy_can_train.argtypes, library.argosy_can_train.restype = [], ctypes.c_int
    for kind, struct, more in (("layer", LayerStruct, 2), ("head", HeadStruct, 0)):
        pointer = ctypes.POINTER(struct)
        room = getattr(library, f"argosy_{kind}_workspace")
        room.argtypes, room.restype = [pointer, ctypes.c_int], _Size
        for name, count in ((f"argosy_{kind}", more), (f"argosy_{kind}_backward", more + (more > 0))):
            function = getattr(library, name)
            function.argtypes, function.restype = [pointer, *[_Pointer] * count], None
    return library if library.argosy_can_train() else None


class Workspace:
    """Memory that calls of the library work in, one after the other: it grows to what the largest one needs.

    It is mapped, not from the heap, so that it leaves no gaps there, and asks for huge pages: blocks of a matrix are
    rows far apart, each on a page of its own.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._tensor = torch.empty(0, dtype=torch.uint8)

    def address(self, size: int) -> int:
        """Of at least `size` bytes."""
        if self._tensor.numel() < size + _HUGE_PAGE:
            self.release()
            self._memory = mmap.mmap(-1, size + _HUGE_PAGE)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with contextlib.suppress(OSError):  # a kernel without them: slower
                    self._memory.madvise(mmap.MADV_HUGEPAGE)
            self._tensor = torch.frombuffer(self._memory, dtype=torch.uint8)
        start = self._tensor.data_ptr()
        return -(-start // _HUGE_PAGE) * _HUGE_PAGE

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return self._tensor.numel()

    def release(self) -> None:
        """Free it; the next call takes it anew."""
        self._tensor = torch.empty(0, dtype=torch.uint8)
        if self._memory is not None:
            self._memory.close()
        self._memory = None


def address(tensor: Tensor | None) -> int | None:
    """For a pointer field; None is null."""
    return None if tensor is None else tensor.data_ptr()


def pointers(tensors: Any) -> Any:
    """Nine addresses."""
    return (_Pointer * 9)(*(address(tensor) for tensor in tensors))
