"""Where a receiver collects a version's bytes before it swaps them in: nothing is visible until everything is right."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from argosy.types.errors import CorruptDataError, StateError
from argosy.types.records import WeightChunk, WeightsManifest
from argosy.weightsync.buffers import FlatBuffer, Part, Place
from argosy.weightsync.copying import copy_piece
from argosy.weightsync.crc import combine, crc32, to_hex
from argosy.weightsync.delta import apply
from argosy.weightsync.tensors import ByteArray, tensor_over

if TYPE_CHECKING:
    import torch

    from argosy.weightsync.snapshot import Snapshot


class _Received:
    """Which parts of one tensor have come, by offset."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.parts: dict[int, Part] = {}
        self.byte_count = 0
        self._checksum: int | None = None

    def overlaps(self, start: int, stop: int) -> bool:
        if not self.starts or start >= self.starts[-1] + self.parts[self.starts[-1]].size:
            return False  # the usual case: they come in order
        index = bisect.bisect_right(self.starts, start)
        if index and self.starts[index - 1] + self.parts[self.starts[index - 1]].size > start:
            return True
        return index < len(self.starts) and self.starts[index] < stop

    def add(self, part: Part) -> None:
        bisect.insort(self.starts, part.offset)
        self.parts[part.offset] = part
        self.byte_count += part.size
        self._checksum = None

    @property
    def checksum(self) -> int:
        """crc32 of all that has come, put together once: the next update's staging asks again."""
        if self._checksum is None:
            self._checksum = combine((part.checksum, part.size) for part in self.in_order())
        return self._checksum

    def in_order(self) -> list[Part]:
        return [self.parts[start] for start in self.starts]


class Staging:
    """The bytes of one manifest, filled by chunks in any order.

    Args:
        manifest: Already checked against the model (`check_manifest`).
        reuse: A staging or snapshot that is no longer wanted: its memory is taken over when the layout has the same
            size. Whoever keeps the finished tensors (instead of copying them into the model) must not pass it on.
    """

    def __init__(self, manifest: WeightsManifest, reuse: Staging | Snapshot | None = None) -> None:
        self.manifest = manifest
        self._specs = {spec.name: spec for spec in manifest.tensors}
        held = reuse.manifest.version if isinstance(reuse, Staging) and reuse.is_whole else None
        before = reuse.retire() if reuse is not None else None
        self._buffer = FlatBuffer(manifest.tensors, before)
        kept = before is not None and before.memory is self._buffer.memory and before.spans == self._buffer.spans
        self.base = held if kept else None
        """The version whose bytes the memory still holds, so that deltas to it can be taken; None: any bytes."""
        self._received = {spec.name: _Received() for spec in manifest.tensors if not spec.tied_to}
        self._open = True
        self.transferred_byte_count = 0
        """Bytes that it took to bring what has come: fewer than received ones where deltas came."""

    @property
    def received_byte_count(self) -> int:
        """Bytes written so far."""
        return sum(received.byte_count for received in self._received.values())

    @property
    def size_bytes(self) -> int:
        """Bytes that the manifest needs."""
        return sum(self._specs[name].size_bytes for name in self._received)

    def write(self, chunk: WeightChunk) -> None:
        """Take one chunk in. Raises CorruptDataError on a wrong name, place, size or checksum, or a byte sent twice."""
        self._check_open()
        spec = self._specs.get(chunk.name)
        if spec is None or spec.tied_to:
            raise CorruptDataError(f"weights {self._name} have no bytes for a tensor {chunk.name!r}", tensor=chunk.name)
        stop = chunk.offset + chunk.size_bytes
        where = f"tensor {chunk.name!r}: bytes {chunk.offset}…{stop}"
        if chunk.offset < 0 or stop > spec.size_bytes or not chunk.data:
            raise CorruptDataError(f"{where} do not lie within its {spec.size_bytes} bytes", tensor=chunk.name)
        received = self._received[chunk.name]
        if received.overlaps(chunk.offset, stop):
            raise CorruptDataError(f"{where} came twice", tensor=chunk.name)
        piece = self._buffer.views[chunk.name][chunk.offset : stop]
        checksum = crc32(chunk.data) if chunk.delta_size_bytes else copy_piece(chunk.data, piece)
        if checksum != chunk.checksum:  # what was copied doesn't count as received, and so is never used
            raise CorruptDataError(
                f"{where} have crc32 {checksum:08x}, {chunk.checksum:08x} was announced", tensor=chunk.name
            )
        if chunk.delta_size_bytes:
            checksum = self._apply(chunk, piece)
        received.add(Part(chunk.offset, chunk.size_bytes, checksum))
        self.transferred_byte_count += len(chunk.data)

    def _apply(self, chunk: WeightChunk, piece: ByteArray) -> int:
        if self.base is None:
            raise CorruptDataError(f"a delta of tensor {chunk.name!r} came, but no version is held that it could be to")
        apply(bytes(chunk.data), piece)
        return crc32(piece.data)

    @property
    def is_whole(self) -> bool:
        """Whether every byte has come, and is what the manifest says."""
        return self._open and not any(self._fault(name) for name in self._received)

    @property
    def buffer(self) -> FlatBuffer:
        """Where the bytes belong, for a transport that writes them itself and then tells it by `accept`."""
        self._check_open()
        return self._buffer

    def accept(self, places: Sequence[Place], checksums: Sequence[int], transferred: int | None = None) -> None:
        """Take note that bytes have been written into `buffer`, and of their crc32s, computed after the writing.

        Raises CorruptDataError on a byte that came twice. Whether the checksums are right, `finish` tells.
        """
        self._check_open()
        for place, checksum in zip(places, checksums, strict=True):
            received = self._received[place.name]
            if received.overlaps(place.offset, place.offset + place.size):
                raise CorruptDataError(f"tensor {place.name!r}: a part came twice", tensor=place.name)
            received.add(Part(place.offset, place.size, checksum))
        self.transferred_byte_count += sum(place.size for place in places) if transferred is None else transferred

    def finish(self) -> dict[str, torch.Tensor]:
        """All tensors by name, tied names sharing their owner's; views of the staging memory.

        Raises:
            CorruptDataError: names the tensors that are incomplete or whose checksum is not the manifest's. Nothing is
                returned then.
        """
        self._check_whole()
        owned = {
            name: tensor_over(view, self._specs[name].shape, self._specs[name].dtype)
            for name, view in self._buffer.views.items()
        }
        return {name: owned[spec.tied_to or name] for name, spec in self._specs.items()}

    def hand_over(self) -> tuple[FlatBuffer, Mapping[str, Sequence[Part]]]:
        """Give the whole, checked bytes to a Snapshot; this staging takes nothing more."""
        self._check_whole()
        self._open = False
        return self._buffer, {name: received.in_order() for name, received in self._received.items()}

    def retire(self) -> FlatBuffer | None:
        """Take nothing more; returns the buffer for reuse, None if it was handed over."""
        buffer = self._buffer if self._open else None
        self._open = False
        return buffer

    def _check_whole(self) -> None:
        self._check_open()
        faults = [fault for name in self._received if (fault := self._fault(name))]
        if faults:
            raise CorruptDataError(
                f"weights {self._name} did not arrive whole, {len(faults)} tensors are wrong: "
                + "; ".join(faults[:10]),
                fault_count=str(len(faults)),
            )

    def _fault(self, name: str) -> str:
        spec, received = self._specs[name], self._received[name]
        if received.byte_count != spec.size_bytes:
            return f"{name}: {received.byte_count} of {spec.size_bytes} bytes"
        checksum = to_hex(received.checksum)
        return f"{name}: crc32 {checksum}, the manifest says {spec.checksum}" if checksum != spec.checksum else ""

    @property
    def _name(self) -> str:
        return self.manifest.version.short

    def _check_open(self) -> None:
        if not self._open:
            raise StateError(f"the staging of weights {self._name} is closed: its memory went on to a later use")
