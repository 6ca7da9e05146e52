"""The trainer as a holder of weights: the version published last, and the base of an adapter while it is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from argosy.trainer.backends import Backend
from argosy.trainer.backends.base import Gathering
from argosy.types.errors import NotFoundError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import AdapterSpec, WeightChunk, WeightsForm, WeightsManifest
from argosy.weightsync import Snapshot
from argosy.weightsync.adapter import NO_LONE_ADAPTER

_NO_REVISION = 0
"""Of a base: the weights under an adapter never change."""


@dataclass(frozen=True, slots=True)
class _Published:
    """A snapshot and what it is of."""

    snapshot: Snapshot
    revision: int
    """How often the trained weights had changed when it was made."""


class PublishedWeights:
    """Freezes and serves versions; implements `argosy.roles.weights.WeightSource`.

    Args:
        publish_dtype: Weights are cast to it; an adapter goes as it is.
        delta: Tell with each version what changed since the one before.
    """

    def __init__(self, publish_dtype: str = "float32", *, delta: bool = False) -> None:
        self._dtype = publish_dtype
        self._delta = delta
        self._kept: dict[WeightsForm, _Published] = {}
        self._base: PolicyVersion | None = None
        self._last: WeightsForm | None = None

    @property
    def address(self) -> str:
        """Always "": in this process."""
        return ""

    @property
    def snapshot(self) -> Snapshot | None:
        """Published last; None before the first and after `forget`."""
        # Asked for by the event loop, also while the compute thread publishes or forgets.
        last = self._last
        kept = None if last is None else self._kept.get(last)
        return None if kept is None else kept.snapshot

    @property
    def version(self) -> PolicyVersion | None:
        """Of the snapshot."""
        return self.snapshot.manifest.version if self.snapshot else None

    def forget(self) -> None:
        """Serve nothing: the weights are others now."""
        self._last = None
        self._kept.clear()

    def publish(self, backend: Backend, lineage: str, step: int, form: WeightsForm, revision: int) -> WeightsManifest:
        """Freeze what `form` names of the backend's weights; blocks. A version that is there already costs nothing.

        Raises StateError on a form that needs an adapter, without one that can go alone.
        """
        if form is not WeightsForm.MERGED and backend.adapter_form is None:
            raise StateError(
                f"weights of the form {form.value!r} need a LoRA adapter with one rank and alpha, which this trainer "
                "doesn't have; set argosy.weight_sync.adapter_only=off",
                state=NO_LONE_ADAPTER,
            )
        if form is WeightsForm.BASE:
            step, revision = 0, _NO_REVISION
        kept = self._kept.get(form)
        outdated: list[WeightsForm] = []
        if kept is None or not _is(kept, lineage, step, revision):
            if form is WeightsForm.ADAPTER:
                # Each the memory of a whole model; the base goes if nobody asked for it since the adapter before.
                outdated = [WeightsForm.MERGED] if self._lacks_base(lineage) else [WeightsForm.MERGED, WeightsForm.BASE]
            kept = _Published(self._freeze_or_forget(backend, lineage, step, form), revision)
            self._kept[form] = kept
        self._last = form
        for other in outdated:
            self._kept.pop(other, None)
        return kept.snapshot.manifest

    def _lacks_base(self, lineage: str) -> bool:
        return self._base is None or self._base.lineage != lineage

    def _freeze_or_forget(self, backend: Backend, lineage: str, step: int, form: WeightsForm) -> Snapshot:
        """As `_freeze`; one that fails half way has overwritten the version before, to which no delta may be then."""
        try:
            return self._freeze(backend, lineage, step, form)
        except BaseException:
            if form in self._kept and self._kept[form].snapshot.is_retired:
                del self._kept[form]
            raise

    def _freeze(self, backend: Backend, lineage: str, step: int, form: WeightsForm) -> Snapshot:
        reuse = self._kept[form].snapshot if form in self._kept else None
        if form is WeightsForm.ADAPTER:
            return self._freeze_adapter(backend, lineage, step, reuse)
        if form is WeightsForm.MERGED and isinstance(backend, Gathering):
            forms = backend.weight_forms()
            if forms is not None:
                return Snapshot.gather(
                    lineage, step, forms[0], backend.weights_into, forms[1], self._dtype, reuse, delta=self._delta
                )
        weights, tied = backend.weights() if form is WeightsForm.MERGED else backend.base_weights()
        return Snapshot.freeze(lineage, step, weights, tied=tied, dtype=self._dtype, reuse=reuse, delta=self._delta)

    def _freeze_adapter(self, backend: Backend, lineage: str, step: int, reuse: Snapshot | None) -> Snapshot:
        if self._lacks_base(lineage):
            self._base = self.publish(backend, lineage, 0, WeightsForm.BASE, _NO_REVISION).version
        form = backend.adapter_form
        assert form is not None
        assert self._base is not None
        spec = AdapterSpec(self._base, form.rank, form.alpha, form.target_modules)
        return Snapshot.freeze(lineage, step, backend.adapter_weights(), reuse=reuse, adapter=spec)

    async def get_manifest(self) -> WeightsManifest:
        """The manifest of the published version. NotFoundError if there is none."""
        return await self.published().get_manifest()

    async def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        """The bytes of the named tensors (all, if empty). NotFoundError if another version is published."""
        async for chunk in self._holding(version).stream_weights(version, names, base=base):
            yield chunk

    def published(self) -> Snapshot:
        """The published version. NotFoundError if there is none."""
        if self.snapshot is None:
            raise NotFoundError("this trainer has published no weights yet")
        return self.snapshot

    def _holding(self, version: PolicyVersion) -> Snapshot:
        # A copy: the compute thread may publish another form meanwhile.
        held = [kept.snapshot for kept in list(self._kept.values()) if kept.snapshot.manifest.version == version]
        return held[0] if held else self.published()


def _is(kept: _Published, lineage: str, step: int, revision: int) -> bool:
    version = kept.snapshot.manifest.version
    return (version.lineage, version.step, kept.revision) == (lineage, step, revision)
