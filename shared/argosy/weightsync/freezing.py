"""Copying tensors into a snapshot's buffer: cast, copied, compared with the version before and checked in one pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from argosy.types.errors import InvalidInputError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import TensorSpec
from argosy.weightsync.buffers import FlatBuffer, Part, Place, places_of
from argosy.weightsync.copying import spread
from argosy.weightsync.crc import combine, crc32, to_hex
from argosy.weightsync.delta import Delta, DeltaRecord, encode
from argosy.weightsync.manifest import DTYPE_WIDTHS, with_ties
from argosy.weightsync.tensors import ByteArray, bytes_of, dtype_name

if TYPE_CHECKING:
    import torch

Put = Callable[[str, "torch.Tensor"], None]
"""(name, whole tensor): takes it in; the tensor may go when it returns."""

_THREADS = 4
"""At most; fewer where there are fewer cores."""


@dataclass(frozen=True, slots=True)
class TensorForm:
    """Shape and dtype of a tensor that will come."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def is_floating(self) -> bool:
        """Whether a cast may change it."""
        return self.dtype.startswith(("float", "bfloat"))


def form_of(tensor: torch.Tensor) -> TensorForm:
    """Of a tensor, or of the whole of one that is spread over ranks."""
    return TensorForm(tuple(tensor.shape), dtype_name(tensor))


class SnapshotWriter:
    """Fills a flat buffer with tensors that come one by one.

    Args:
        forms: Tensors by name, in sending order; tied names are left out.
        tied: Redundant name → owner name.
        dtype: Cast floating tensors to it; None leaves them.
        room: A buffer to take over when it has the right size.
        before: The version before, to count what has changed; may be `room`, whose bytes are compared before they are
            overwritten. Another layout is not compared.
        delta_base: The version that `before` is, to make a delta from; None makes none.
    """

    def __init__(
        self,
        forms: Mapping[str, TensorForm],
        tied: Mapping[str, str],
        dtype: str | None = None,
        *,
        room: FlatBuffer | None = None,
        before: FlatBuffer | None = None,
        delta_base: PolicyVersion | None = None,
    ) -> None:
        blank = {name: TensorSpec(name, form.shape, _cast(form, dtype), "") for name, form in forms.items()}
        self._specs = blank
        self._tied = tied
        self._buffer = FlatBuffer(blank.values(), room)
        self._before = before if before is not None and before.spans == self._buffer.spans else None
        self._parts: dict[str, list[Part]] = {}
        self._changed = 0
        self._delta_base = delta_base if self._before is not None else None
        self._records: dict[str, tuple[DeltaRecord, ...]] = {}
        self._delta_seconds: list[float] = []

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Take a whole tensor in. InvalidInputError if it isn't expected, or has come before."""
        spec = self._specs.get(name)
        if spec is None or name in self._parts or tuple(tensor.shape) != spec.shape:
            raise InvalidInputError(
                f"tensor {name!r} of shape {tuple(tensor.shape)} is not expected here, or not again"
            )
        source = _source(tensor, spec.dtype)
        begin, end = self._buffer.spans[name]
        before = self._before.memory if self._before is not None else None
        width = DTYPE_WIDTHS[spec.dtype]

        def take(place: Place) -> tuple[int, int]:
            piece = source(place)
            changed = 0 if before is None else _difference(piece, before[place.start : place.start + place.size], width)
            target = self._buffer.memory[place.start : place.start + place.size]
            np.copyto(target, piece)
            return crc32(target.data), changed

        def take_delta(place: Place) -> tuple[int, int]:
            assert before is not None
            piece = source(place)
            begun = time.perf_counter()
            record, changed = encode(before[place.start : place.start + place.size], piece, width)
            records[place.offset] = DeltaRecord(place.offset, place.size, record, crc32(record), changed)
            self._delta_seconds.append(time.perf_counter() - begun)
            target = self._buffer.memory[place.start : place.start + place.size]
            np.copyto(target, piece)
            return crc32(target.data), changed

        records: dict[int, DeltaRecord] = {}
        places = places_of(name, begin, end)
        taken = spread(take if self._delta_base is None else take_delta, places, _THREADS)
        self._parts[name] = [Part(p.offset, p.size, crc) for p, (crc, _) in zip(places, taken, strict=True)]
        self._changed += sum(changed for _, changed in taken)
        self._records[name] = tuple(records[place.offset] for place in places if place.offset in records)

    def sealed(self) -> tuple[list[TensorSpec], FlatBuffer, Mapping[str, Sequence[Part]]]:
        """(specs with checksums, tied ones last; the bytes; their parts). StateError if a tensor hasn't come."""
        missing = self._specs.keys() - self._parts.keys()
        if missing:
            raise StateError(f"{len(missing)} tensors of the snapshot have not come, {sorted(missing)[0]!r} among them")
        sealed = {name: _sealed(spec, self._parts[name]) for name, spec in self._specs.items()}
        parts = {name: self._parts[name] for name in self._specs}
        return with_ties(sealed, self._tied), self._buffer, parts

    @property
    def delta(self) -> Delta | None:
        """From the version before; None if none was asked for, or that has another layout."""
        if self._delta_base is None:
            return None
        return Delta(self._delta_base, {name: self._records[name] for name in self._specs}, sum(self._delta_seconds))

    @property
    def changed_share(self) -> float | None:
        """Share of the values that differ from those before; None without a version before."""
        if self._before is None:
            return None
        total = sum(spec.size_bytes // DTYPE_WIDTHS[spec.dtype] for spec in self._specs.values())
        return self._changed / total if total else 0.0


def _cast(form: TensorForm, dtype: str | None) -> str:
    return dtype if dtype is not None and form.is_floating else form.dtype


def _source(tensor: torch.Tensor, dtype: str) -> Callable[[Place], ByteArray]:
    """Gives a place's bytes in the given dtype. A CPU tensor is cast part by part, within the core's cache."""
    import torch

    kind = getattr(torch, dtype)
    if tensor.device.type != "cpu" or tensor.dtype == kind:
        whole = bytes_of(tensor.to(kind))  # a cast on the device, then half the bytes over the bus
        return lambda place: whole[place.offset : place.offset + place.size]
    flat = tensor.detach().contiguous().reshape(-1)
    width = DTYPE_WIDTHS[dtype]
    return lambda place: bytes_of(flat[place.offset // width : (place.offset + place.size) // width].to(kind))


def _difference(new: ByteArray, old: ByteArray, width: int) -> int:
    """How many values of `width` bytes differ, by their bits."""
    kind = np.dtype(f"u{width}")
    return int(np.count_nonzero(new.view(kind) != old.view(kind)))


def _sealed(spec: TensorSpec, parts: Sequence[Part]) -> TensorSpec:
    total = combine((part.checksum, part.size) for part in parts)
    return TensorSpec(spec.name, spec.shape, spec.dtype, to_hex(total))
