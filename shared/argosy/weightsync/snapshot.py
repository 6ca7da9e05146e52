"""A frozen copy of a model's weights, served while the trainer goes on."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from argosy.types.errors import InvalidInputError, NotFoundError
from argosy.types.ids import PolicyVersion
from argosy.types.records import TensorSpec, WeightChunk, WeightsManifest
from argosy.weightsync.agreement import verify_agreement
from argosy.weightsync.buffers import FlatBuffer, Part
from argosy.weightsync.crc import combine, to_hex
from argosy.weightsync.manifest import check_ties, make_manifest, with_ties
from argosy.weightsync.tensors import ByteArray, dtype_name, tensor_over

if TYPE_CHECKING:
    import torch

    from argosy.weightsync.staging import Staging

CHUNK_BYTES = 1 << 20
"""Largest piece of a tensor in one message: larger ones are slower over gRPC (FACTS)."""


class Snapshot:
    """One policy version's bytes in this process; implements `argosy.roles.weights.WeightSource`.

    Made by `freeze` (a trainer), `of_staging` (a server that serves on what it received) or from a manifest and its
    tensors, which are copied and must be what the manifest says (CorruptDataError).
    """

    def __init__(self, manifest: WeightsManifest, tensors: Mapping[str, torch.Tensor]) -> None:
        specs = [spec for spec in manifest.tensors if not spec.tied_to]
        buffer = FlatBuffer(specs)
        parts = {spec.name: _copy(tensors[spec.name], buffer.views[spec.name], spec) for spec in specs}
        held = make_manifest(
            manifest.version.lineage, manifest.version.step, [_sealed(s, parts[s.name]) for s in specs]
        )
        verify_agreement(manifest, held)
        self._fill(manifest, buffer, parts)

    def _fill(self, manifest: WeightsManifest, buffer: FlatBuffer, parts: Mapping[str, Sequence[Part]]) -> None:
        self.manifest = manifest
        self._buffer = buffer
        self._parts = parts
        self._reader_count = 0
        self._retired = False

    @classmethod
    def freeze(
        cls,
        lineage: str,
        step: int,
        model_state: Mapping[str, torch.Tensor],
        tied: Mapping[str, str] | None = None,
        dtype: str | None = None,
        reuse: Snapshot | Staging | None = None,
    ) -> Snapshot:
        """Copy a model's state into a flat buffer and name it as a version. Blocks: call it in a thread.

        Args:
            lineage: See PolicyVersion.
            step: See PolicyVersion.
            model_state: By name, any device; `model.state_dict()`.
            tied: Redundant name → owner name (`find_tied(model_state)`).
            dtype: Cast floating tensors to it ("bfloat16", …); None sends them as they are.
            reuse: What is no longer wanted. Its memory is taken over unless someone still reads it; it serves nothing
                from then on. To let receivers finish with the last version, pass the one before it.
        """
        ties = check_ties(model_state, tied or {})
        owners = {name: tensor for name, tensor in model_state.items() if name not in ties}
        specs = [_blank_spec(name, tensor, dtype) for name, tensor in owners.items()]
        buffer = FlatBuffer(specs, reuse.retire() if reuse is not None else None)
        parts = {spec.name: _copy(owners[spec.name], buffer.views[spec.name], spec) for spec in specs}
        sealed = {spec.name: _sealed(spec, parts[spec.name]) for spec in specs}
        return cls._made(make_manifest(lineage, step, with_ties(sealed, ties)), buffer, parts)

    @classmethod
    def of_staging(cls, staging: Staging) -> Snapshot:
        """Serve what a finished staging holds, without a copy: the staging takes nothing more."""
        buffer, parts = staging.hand_over()
        return cls._made(staging.manifest, buffer, parts)

    @classmethod
    def _made(cls, manifest: WeightsManifest, buffer: FlatBuffer, parts: Mapping[str, Sequence[Part]]) -> Snapshot:
        snapshot = cls.__new__(cls)
        snapshot._fill(manifest, buffer, parts)
        return snapshot

    def hold(self) -> None:
        """Keep the bytes as they are until `release`. NotFoundError if they have been given up already."""
        self._reader_count += 1
        if self._retired:
            self._reader_count -= 1
            self._check_live()

    def release(self) -> None:
        """End one `hold`."""
        self._reader_count -= 1

    def retire(self) -> FlatBuffer | None:
        """Serve nothing from now on; returns the buffer for reuse, or None while a stream still reads it."""
        self._retired = True
        return self._buffer if self._reader_count == 0 else None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The frozen tensors by name, tied names included; views that must not be written to."""
        specs = {spec.name: spec for spec in self.manifest.tensors}
        owned = {
            name: tensor_over(view, specs[name].shape, specs[name].dtype) for name, view in self._buffer.views.items()
        }
        return {name: owned[spec.tied_to or name] for name, spec in specs.items()}

    @property
    def address(self) -> str:
        """Always "": in this process."""
        return ""

    async def get_manifest(self) -> WeightsManifest:
        """The manifest of the frozen version."""
        self._check_live()
        return self.manifest

    async def stream_weights(self, version: PolicyVersion, names: tuple[str, ...] = ()) -> AsyncIterator[WeightChunk]:
        """The bytes in chunks of at most about CHUNK_BYTES, as fast as they are taken."""
        if version != self.manifest.version:
            raise NotFoundError(f"this holder has weights {self.manifest.version.short}, not {version.short}")
        unknown = sorted(set(names) - {spec.name for spec in self.manifest.tensors})
        if unknown:
            raise InvalidInputError(f"weights {version.short} have no tensor {unknown[0]!r}", field="names")
        # The count goes up first: `retire`, in the trainer's thread, looks at it when no reader can begin any more.
        self.hold()
        try:
            for name in [name for name in self._parts if not names or name in names]:
                view = self._buffer.views[name]
                for part in self._parts[name]:
                    data = view[part.offset : part.offset + part.size].tobytes()
                    yield WeightChunk(name, part.offset, data, part.checksum)
                    # In one process nothing else suspends: without this a sync would hold the event loop to its end.
                    await asyncio.sleep(0)
        finally:
            self.release()

    def _check_live(self) -> None:
        if self._retired:
            raise NotFoundError(f"weights {self.manifest.version.short} were replaced by a newer version: ask for that")


def _copy(tensor: torch.Tensor, view: ByteArray, spec: TensorSpec) -> list[Part]:
    """Copy (and cast) a tensor into its view of the buffer, and take the checksums of its parts."""
    tensor_over(view, spec.shape, spec.dtype).copy_(tensor.detach())
    starts = range(0, len(view), CHUNK_BYTES)
    pieces = [(start, view[start : start + CHUNK_BYTES]) for start in starts]
    return [Part(start, len(piece), zlib.crc32(piece.data)) for start, piece in pieces]


def _blank_spec(name: str, tensor: torch.Tensor, dtype: str | None) -> TensorSpec:
    kind = dtype if dtype is not None and tensor.is_floating_point() else dtype_name(tensor)
    return TensorSpec(name, tuple(tensor.shape), kind, "")


def _sealed(spec: TensorSpec, parts: Sequence[Part]) -> TensorSpec:
    total = combine((part.checksum, part.size) for part in parts)
    return TensorSpec(spec.name, spec.shape, spec.dtype, to_hex(total))
