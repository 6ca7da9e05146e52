"""A frozen copy of a model's weights, served while the trainer goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from argosy.types.errors import InvalidInputError, NotFoundError
from argosy.types.ids import PolicyVersion
from argosy.types.records import AdapterSpec, WeightChunk, WeightsManifest
from argosy.weightsync.agreement import verify_agreement
from argosy.weightsync.buffers import CHUNK_BYTES, FlatBuffer, Part
from argosy.weightsync.freezing import SnapshotWriter, TensorForm, form_of
from argosy.weightsync.manifest import check_ties, make_manifest
from argosy.weightsync.tensors import tensor_over

if TYPE_CHECKING:
    import torch

    from argosy.weightsync.delta import Delta
    from argosy.weightsync.freezing import Put
    from argosy.weightsync.staging import Staging

__all__ = ["CHUNK_BYTES", "Snapshot"]


class Snapshot:
    """One policy version's bytes in this process; implements `argosy.roles.weights.WeightSource`.

    Made by `freeze` (a trainer), `of_staging` (a server that serves on what it received) or from a manifest and its
    tensors, which are copied and must be what the manifest says (CorruptDataError).
    """

    def __init__(self, manifest: WeightsManifest, tensors: Mapping[str, torch.Tensor]) -> None:
        version = manifest.version
        forms = {spec.name: TensorForm(spec.shape, spec.dtype) for spec in manifest.tensors if not spec.tied_to}
        writer = SnapshotWriter(forms, {})
        for name in forms:
            writer.put(name, tensors[name])
        specs, buffer, parts = writer.sealed()
        verify_agreement(manifest, make_manifest(version.lineage, version.step, specs))
        self._fill(manifest, buffer, parts)

    def _fill(self, manifest: WeightsManifest, buffer: FlatBuffer, parts: Mapping[str, Sequence[Part]]) -> None:
        self.manifest = manifest
        self._buffer = buffer
        self._parts = parts
        self._reader_count = 0
        self._retired = False
        self.changed_share: float | None = None
        """Share of the values that differ, in the published dtype, from those of the snapshot before (case E7); None
        without one of the same tensors."""
        self.delta: Delta | None = None
        """From the snapshot before, if `freeze` was asked for it."""

    @classmethod
    def freeze(
        cls,
        lineage: str,
        step: int,
        model_state: Mapping[str, torch.Tensor],
        tied: Mapping[str, str] | None = None,
        dtype: str | None = None,
        reuse: Snapshot | Staging | None = None,
        *,
        delta: bool = False,
        adapter: AdapterSpec | None = None,
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
            delta: Also tell what changed since `reuse`, if that is a snapshot of the same tensors.
            adapter: The tensors are those of this adapter.
        """
        ties = check_ties(model_state, tied or {})
        owners = {name: tensor for name, tensor in model_state.items() if name not in ties}

        def put_all(put: Put) -> None:
            for name, tensor in owners.items():
                put(name, tensor)

        forms = {name: form_of(tensor) for name, tensor in owners.items()}
        return cls.gather(
            lineage, step, forms, put_all, tied=ties, dtype=dtype, reuse=reuse, delta=delta, adapter=adapter
        )

    @classmethod
    def gather(
        cls,
        lineage: str,
        step: int,
        forms: Mapping[str, TensorForm],
        put_all: Callable[[Put], None],
        tied: Mapping[str, str] | None = None,
        dtype: str | None = None,
        reuse: Snapshot | Staging | None = None,
        *,
        delta: bool = False,
        adapter: AdapterSpec | None = None,
    ) -> Snapshot:
        """As `freeze`, from tensors that come one by one, so that they are never all there beside the copy.

        Args:
            lineage: See PolicyVersion.
            step: See PolicyVersion.
            forms: What will come, in sending order, tied names left out.
            put_all: Calls what it is given once with every tensor of `forms`, in any order. A tensor may go as soon as
                that call returns.
            tied: Redundant name → owner name.
            dtype: See `freeze`.
            reuse: See `freeze`.
            delta: See `freeze`.
            adapter: See `freeze`.
        """
        before = reuse.buffer if reuse is not None else None
        room = reuse.retire() if reuse is not None else None
        base = reuse.manifest.version if delta and isinstance(reuse, Snapshot) else None
        writer = SnapshotWriter(forms, tied or {}, dtype, room=room, before=before, delta_base=base)
        put_all(writer.put)
        specs, buffer, parts = writer.sealed()
        snapshot = cls._made(make_manifest(lineage, step, specs, adapter), buffer, parts)
        snapshot.changed_share = writer.changed_share
        snapshot.delta = writer.delta
        return snapshot

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

    @property
    def buffer(self) -> FlatBuffer:
        """The bytes, for transports of this process: not to be written to."""
        return self._buffer

    @property
    def is_retired(self) -> bool:
        """Whether it serves nothing any more, and its bytes may be others."""
        return self._retired

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

    async def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        """The bytes in chunks of at most about CHUNK_BYTES, as fast as they are taken; deltas, if `base` is theirs."""
        if version != self.manifest.version:
            raise NotFoundError(f"this holder has weights {self.manifest.version.short}, not {version.short}")
        unknown = sorted(set(names) - {spec.name for spec in self.manifest.tensors})
        if unknown:
            raise InvalidInputError(f"weights {version.short} have no tensor {unknown[0]!r}", field="names")
        # The count goes up first: `retire`, in the trainer's thread, looks at it when no reader can begin any more.
        self.hold()
        try:
            delta = self.delta if self.delta is not None and self.delta.base == base else None
            for name in [name for name in self._parts if not names or name in names]:
                chunks = self._plain_chunks(name) if delta is None else _delta_chunks(name, delta)
                for chunk in chunks:
                    yield chunk
                    # In one process nothing else suspends: without this a sync would hold the event loop to its end.
                    await asyncio.sleep(0)
        finally:
            self.release()

    def _plain_chunks(self, name: str) -> Iterator[WeightChunk]:
        view = self._buffer.views[name]
        for part in self._parts[name]:
            # A view: whoever takes the chunk copies it before asking for the next one.
            yield WeightChunk(name, part.offset, view[part.offset : part.offset + part.size].data, part.checksum)

    def _check_live(self) -> None:
        if self._retired:
            raise NotFoundError(f"weights {self.manifest.version.short} were replaced by a newer version: ask for that")


def _delta_chunks(name: str, delta: Delta) -> Iterator[WeightChunk]:
    """Also of what has not changed, in a few bytes: a receiver takes nothing for right that it wasn't told of."""
    for record in delta.records[name]:
        yield WeightChunk(name, record.offset, record.data, record.checksum, delta_size_bytes=record.size)
