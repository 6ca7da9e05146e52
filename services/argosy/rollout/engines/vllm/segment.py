"""Anonymous shared memory that holds a model's tensors for vLLM's workers: no file, nothing left behind by a crash."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from argosy.types.errors import InvalidInputError
from argosy.weightsync.tensors import bytes_of, dtype_name, tensor_over

if TYPE_CHECKING:
    from torch import Tensor

_ALIGNMENT = 64
"""Bytes; a cache line, more than any dtype needs."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one tensor lies."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the segment's start."""


class Segment:
    """Memory of this process that others of the same user can map while it lives.

    It is reused by the next update, so that its pages are touched for the first time only once.
    """

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("argosy-weights", os.MFD_CLOEXEC)
        self._size = 0
        self._map: mmap.mmap | None = None
        self._placed: tuple[Placed, ...] = ()

    @property
    def path(self) -> str:
        """Opens it from another process of this machine."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    @property
    def placed(self) -> tuple[Placed, ...]:
        """The tensors that it holds."""
        return self._placed

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors in, in place of what it held. Takes as long as a memcpy: call it off the event loop."""
        offset = 0
        placed = []
        for name, tensor in tensors.items():
            placed.append(Placed(name, dtype_name(tensor), tuple(tensor.shape), offset))
            offset += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        self._placed = ()
        memory = self._room(max(offset, 1))
        for place, tensor in zip(placed, tensors.values(), strict=True):
            data = bytes_of(tensor)
            memory[place.offset : place.offset + data.size] = data
        self._placed = tuple(placed)

    def replace(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors in over some of those that it holds; the others stay. InvalidInputError on one that it lacks."""
        views = self.tensors()
        for name, tensor in tensors.items():
            if name not in views or views[name].shape != tensor.shape:
                raise InvalidInputError(f"there is no tensor {name!r} of shape {tuple(tensor.shape)} to be replaced")
            views[name].copy_(tensor)

    def tensors(self) -> dict[str, Tensor]:
        """Views of what it holds; overwritten by the next `fill`."""
        if self._map is None:
            return {}
        memory = np.frombuffer(self._map, np.uint8)
        views = {}
        for place in self._placed:
            size = int(np.prod(place.shape, dtype=np.int64)) * _width(place.dtype)
            views[place.name] = tensor_over(memory[place.offset : place.offset + size], place.shape, place.dtype)
        return views

    def close(self) -> None:
        """Give the memory back. Views that live keep theirs."""
        self._placed = ()
        self._map = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _room(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        if self._map is None or size > self._size:
            os.ftruncate(self._descriptor, size)
            self._map = mmap.mmap(self._descriptor, size)
            self._size = size
        return np.frombuffer(self._map, np.uint8)


def _width(dtype: str) -> int:
    from argosy.weightsync.manifest import DTYPE_WIDTHS

    return DTYPE_WIDTHS[dtype]
