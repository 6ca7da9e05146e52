"""Reading a version out of a `chain`, every byte checked; a link that is damaged is gone round, or named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from argosy.types.errors import CorruptDataError, NotFoundError
from argosy.types.ids import PolicyVersion
from argosy.types.records import TensorSpec, WeightsManifest
from argosy.weightsync.buffers import CHUNK_BYTES, FlatBuffer, Place, places_of
from argosy.weightsync.chain import BASE, Chain, Link, chains_to, damaged_links, read_links
from argosy.weightsync.chain_writer import RECORD_HEADER
from argosy.weightsync.crc import combine, crc32, to_hex
from argosy.weightsync.delta import apply
from argosy.weightsync.tensors import ByteArray

_HEADER_LIMIT = 100 << 20
"""Bytes of a safetensors header, as the format bounds it."""

Guard = Callable[[Callable[[], None]], None]
"""Runs a piece of work that writes into the target, unless the caller has given up (then it raises)."""


@dataclass(frozen=True, slots=True)
class Found:
    """A version that was read."""

    places: list[Place]
    checksums: list[int]
    """crc32 of each place."""
    read_byte_count: int


def read_version(
    folder: Path, manifest: WeightsManifest, target: FlatBuffer, held: PolicyVersion | None, guard: Guard
) -> Found:
    """Fill `target` with a version, by the cheapest sound chain. Blocks.

    Args:
        folder: Of the chain.
        manifest: Of the version; what is read has its checksums, tensor by tensor.
        target: Laid out for the manifest; its content is spoilt if this fails.
        held: The version that `target` holds already, if any: a chain may begin there.
        guard: Around every write into `target`; ends the reading by an exception.

    Raises:
        NotFoundError: no chain leads to the version. Names damaged links.
        CorruptDataError: every chain has damage; names what is wrong with each.
    """
    chains = chains_to(read_links(folder), manifest.version, held)
    faults: list[str] = []
    for chain in chains:
        if faults and (not chain or chain[0].kind != BASE):
            continue  # what was held is spoilt
        try:
            return _read_chain(chain, manifest, target, guard)
        except (CorruptDataError, OSError) as error:
            faults.append(str(error))
    damaged = damaged_links(folder)
    told = "; ".join([*faults, *(f"damaged: {name}" for name in damaged)])
    if not faults:
        raise NotFoundError(
            f"no chain of versions in {folder} leads to weights {manifest.version.short}"
            + (f"; {told}" if told else "")
        )
    raise CorruptDataError(f"weights {manifest.version.short} can't be read from {folder}: {told}")


def sound_chain(links: Sequence[Link], manifest: WeightsManifest, guard: Guard) -> bool:
    """Whether some chain from a base gives exactly the manifest's version. Reads it, and needs its memory meanwhile."""
    target = FlatBuffer(manifest.tensors)
    for chain in chains_to(links, manifest.version):
        try:
            _read_chain(chain, manifest, target, guard)
        except (CorruptDataError, OSError):
            continue
        return True
    return False


def _read_chain(chain: Chain, manifest: WeightsManifest, target: FlatBuffer, guard: Guard) -> Found:
    places: list[Place] = []
    checksums: list[int] = []
    with ExitStack() as opened:
        files = [_OpenLink(link, opened) for link in chain]
        for spec in [spec for spec in manifest.tensors if not spec.tied_to]:
            for file in files:
                file.bring(spec, target.views[spec.name], guard)
            parts = places_of(spec.name, *target.spans[spec.name])
            found = [crc32(target.memory[part.start : part.start + part.size].data) for part in parts]
            whole = to_hex(combine(zip(found, (part.size for part in parts), strict=True)))
            if whole != spec.checksum:
                raise CorruptDataError(f"{_named(chain)} gives tensor {spec.name!r} crc32 {whole}, not {spec.checksum}")
            places += parts
            checksums += found
    return Found(places, checksums, sum(file.read_byte_count for file in files))


def _named(chain: Chain) -> str:
    return " + ".join(link.folder.name for link in chain) or "what is held"


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where a tensor's bytes lie."""

    file: IO[bytes]
    start: int
    size: int
    checksum: str


class _OpenLink:
    """A link's files, open for reading: read, not mapped, since a file that another machine cuts would end a process
    that has it mapped."""

    def __init__(self, link: Link, opened: ExitStack) -> None:
        self._link = link
        self.read_byte_count = 0
        self._stored: dict[str, _Stored] = {}
        for file in link.files:
            handle = opened.enter_context((link.folder / file.name).open("rb"))
            places = self._header(handle, file.name, file.size)
            for name, checksum in file.tensors.items():
                if name not in places:
                    raise self._damage(f"{file.name} lacks tensor {name!r}")
                self._stored[name] = _Stored(handle, *places[name], checksum)

    def bring(self, spec: TensorSpec, view: ByteArray, guard: Guard) -> None:
        """BASE: the tensor's bytes into `view`. DELTA: what changed, on top of what is there."""
        stored = self._stored.get(spec.name)
        if self._link.kind == BASE:
            if stored is None or stored.size != view.size:
                raise self._damage(f"tensor {spec.name!r} is absent or of another size")
            self._copy(spec.name, stored, view, guard)
        elif stored is not None:
            for offset, size, record in self._records(spec.name, stored):
                if offset + size > view.size:
                    raise self._damage(f"a delta of tensor {spec.name!r} does not lie within its {view.size} bytes")
                piece = view[offset : offset + size]
                guard(lambda record=record, piece=piece: apply(record, piece))  # type: ignore[misc]

    def _copy(self, name: str, stored: _Stored, view: ByteArray, guard: Guard) -> None:
        found = []
        for start in range(0, stored.size, CHUNK_BYTES):
            data = self._read(stored, start, min(CHUNK_BYTES, stored.size - start))
            found.append((crc32(data), len(data)))
            piece = view[start : start + len(data)]
            guard(lambda data=data, piece=piece: np.copyto(piece, np.frombuffer(data, np.uint8)))  # type: ignore[misc]
        self._check(name, stored, to_hex(combine(found)))

    def _records(self, name: str, stored: _Stored) -> Iterator[tuple[int, int, bytes]]:
        data = self._read(stored, 0, stored.size)
        self._check(name, stored, to_hex(crc32(data)))
        start = 0
        while start + RECORD_HEADER.size <= len(data):
            offset, size, length, checksum = RECORD_HEADER.unpack_from(data, start)
            start += RECORD_HEADER.size
            record = data[start : start + length]
            if crc32(record) != checksum:
                raise self._damage(f"a delta of tensor {name!r} has a wrong checksum")
            yield offset, size, record
            start += length
        if start != len(data):
            raise self._damage(f"the deltas of tensor {name!r} are cut short")

    def _read(self, stored: _Stored, start: int, size: int) -> bytes:
        stored.file.seek(stored.start + start)
        data = stored.file.read(size)
        if len(data) != size:
            raise self._damage(f"{Path(stored.file.name).name} is cut short")
        self.read_byte_count += size
        return data

    def _check(self, name: str, stored: _Stored, found: str) -> None:
        if found != stored.checksum:
            raise self._damage(f"tensor {name!r} has crc32 {found}, its record says {stored.checksum}")

    def _header(self, handle: IO[bytes], name: str, size: int) -> dict[str, tuple[int, int]]:
        """Tensor → (place in the file, bytes), by the format's definition: 8 bytes of length, JSON, data."""
        length = int.from_bytes(handle.read(8), "little")
        if not 0 < length <= min(_HEADER_LIMIT, size - 8):
            raise self._damage(f"{name} has no header of safetensors")
        try:
            header = json.loads(handle.read(length))
            spans = {key: entry["data_offsets"] for key, entry in header.items() if key != "__metadata__"}
            found = {key: (8 + length + int(start), int(stop) - int(start)) for key, (start, stop) in spans.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damage(f"{name} has a header that can't be read ({error})") from error
        if any(start < 8 + length or count < 0 or start + count > size for start, count in found.values()):
            raise self._damage(f"{name} has a tensor outside of its bytes")
        return found

    def _damage(self, what: str) -> CorruptDataError:
        return CorruptDataError(f"link {self._link.folder.name} is damaged: {what}", link=self._link.folder.name)
