"""One flat byte buffer for a whole set of tensors, kept from sync to sync: allocating 270 MB anew costs page faults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from argosy.types.records import TensorSpec
from argosy.weightsync.tensors import ByteArray

_ALIGNMENT = 64
"""Every tensor starts on a cache line, and so on a multiple of any element width."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of one tensor's bytes, the size of a message."""

    offset: int
    size: int
    checksum: int
    """crc32 of the bytes."""


class FlatBuffer:
    """Bytes of the tensors that own some, end to end; `views[name]` is one tensor's part."""

    views: dict[str, ByteArray]

    def __init__(self, specs: Iterable[TensorSpec], reuse: FlatBuffer | None = None) -> None:
        """Lay the specs out, in the memory of `reuse` if that has the right size."""
        places: dict[str, tuple[int, int]] = {}
        end = 0
        for spec in specs:
            if spec.tied_to:
                continue
            places[spec.name] = (end, end + spec.size_bytes)
            end += -(-spec.size_bytes // _ALIGNMENT) * _ALIGNMENT
        kept = reuse is not None and reuse.memory.size == end
        self.memory: ByteArray = reuse.memory if reuse is not None and kept else np.empty(end, np.uint8)
        self.views = {name: self.memory[start:stop] for name, (start, stop) in places.items()}
