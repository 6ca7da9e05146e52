"""One flat byte buffer for a whole set of tensors, kept from sync to sync: allocating 270 MB anew costs page faults.

The layout follows from the manifest alone, so a sender's and a receiver's buffers of one version are byte for byte
alike: a bucket is any slice of it, and nothing has to be gathered or scattered on the way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from argosy.types.records import TensorSpec
from argosy.weightsync.memory import MemoryFile, allocate
from argosy.weightsync.tensors import ByteArray

CHUNK_BYTES = 1 << 20
"""Largest piece of a tensor in one message: larger ones are slower over gRPC (on one host
1.2 GB/s with 1 MiB, 0.4 with 16 MiB)."""
_ALIGNMENT = 64
"""Every tensor starts on a cache line, and so on a multiple of any element width."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of one tensor's bytes, the size of a message."""

    offset: int
    size: int
    checksum: int
    """crc32 of the bytes."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part lies in the buffer."""

    name: str
    offset: int
    """In its tensor."""
    start: int
    """In the buffer."""
    size: int
    """At most CHUNK_BYTES."""


class FlatBuffer:
    """Bytes of the tensors that own some, end to end; `views[name]` is one tensor's part."""

    views: dict[str, ByteArray]

    def __init__(self, specs: Iterable[TensorSpec], reuse: FlatBuffer | None = None) -> None:
        """Lay the specs out, in the memory of `reuse` if that has the right size."""
        self.spans: dict[str, tuple[int, int]] = {}
        """Name → (start, stop) in `memory`, in sending order."""
        end = 0
        for spec in specs:
            if spec.tied_to:
                continue
            self.spans[spec.name] = (end, end + spec.size_bytes)
            end += -(-spec.size_bytes // _ALIGNMENT) * _ALIGNMENT
        self.memory: ByteArray
        """Everything, [size] uint8."""
        self.file: MemoryFile | None
        """Where other processes can map the memory; None where the system can't do that."""
        if reuse is not None and reuse.memory.size == end:
            self.memory, self.file = reuse.memory, reuse.file
        else:
            self.memory, self.file = allocate(end)
        self.views = {name: self.memory[start:stop] for name, (start, stop) in self.spans.items()}

    def places(self) -> list[Place]:
        """Every part of every tensor, in sending order."""
        return [place for name, (start, stop) in self.spans.items() for place in places_of(name, start, stop)]


def places_of(name: str, start: int, stop: int) -> list[Place]:
    """The parts of a tensor that lies at start…stop."""
    begins = range(start, stop, CHUNK_BYTES)
    return [Place(name, begin - start, begin, min(CHUNK_BYTES, stop - begin)) for begin in begins]
