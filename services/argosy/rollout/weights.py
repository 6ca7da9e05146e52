"""The weights of a rollout server: taken in by four phases, and passed on to newcomers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING

from argosy.roles.weights import SOURCE, WeightSource
from argosy.rollout.adapters import Adapters
from argosy.rollout.engines.base import Engine, ReceivesCollectives
from argosy.rollout.engines.updates import WeightUpdates
from argosy.rollout.passing import WatchedSource, chunks_of, name_of
from argosy.types.errors import CorruptDataError, InvalidInputError, NotFoundError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import TransferOffer, WeightChunk, WeightsManifest
from argosy.weightsync import Snapshot, build_manifest, shapes_of

if TYPE_CHECKING:
    from torch import Tensor

_END_RECEIVE_S = 5.0
"""Seconds that a receive which is given up may take to end, before the next one takes memory of its own beside it."""


class ServerWeights:
    """The four phases over an engine, and the weights that it holds; implements `argosy.roles.weights.WeightSource`.

    Args:
        engine: Started: its facts are known.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        facts = engine.facts
        self._tied = facts.tied
        collective = engine.receive_collective if isinstance(engine, ReceivesCollectives) else None
        self._updates = WeightUpdates(facts.shapes, facts.tied, facts.casts, collective)
        self._manifest: WeightsManifest | None = None
        """Of the last update; None while the engine serves what it loaded by itself."""
        self._snapshot: Snapshot | None = None
        self._adapters = Adapters(engine)
        self._swap: asyncio.Task[PolicyVersion] | None = None
        """The last swap of weights, done or running."""
        self._swap_began = 0.0
        """On the `time.monotonic` clock."""
        self._still = asyncio.Lock()
        """Held while weights are swapped or copied, which must not meet."""
        self._receiving: asyncio.Task[int] | None = None
        """The last receive, done or running: there is one at a time."""

    @property
    def swap_under_way(self) -> asyncio.Task[PolicyVersion] | None:
        """The swap that runs, in which the engine may serve no version; None between two."""
        return None if self._swap is None or self._swap.done() else self._swap

    @property
    def swapping_s(self) -> float:
        """Seconds that the swap has run which is under way; 0 between two."""
        return 0.0 if self.swap_under_way is None else time.monotonic() - self._swap_began

    def init_transport(self, transport: str) -> None:
        """Take the next updates' bytes by it. InvalidInputError on a transport that this server or its engine lacks."""
        self._updates.init_transport(transport)
        capabilities = self._engine.capabilities
        if transport not in capabilities.transports:
            raise InvalidInputError(
                f"the engine {capabilities.engine} takes weights by {', '.join(sorted(capabilities.transports))}, "
                f"not by {transport}: set argosy.weight_sync.transport to one of these",
                field="transport",
            )

    async def start(self, sync_id: str, manifest: WeightsManifest) -> None:
        """Check the manifest and make room. StateError while another update is swapped in: its bytes are needed.

        A receive of another update ends: whoever asked for it has gone, or is fenced off.
        """
        if self._finished(sync_id) != manifest.version:
            if self.swap_under_way is not None:
                raise StateError("weights are being swapped in; start an update when finish_weight_update has answered")
            if manifest.adapter is not None:
                self._adapters.check(manifest.adapter)
            if self._updates.start(sync_id, manifest):
                await self._end_receive()

    def release(self, *, engine_drops: bool = False) -> None:
        """Free what is kept only to be used again: a copy for newcomers, and the room for the next update's bytes.

        `engine_drops`: The engine gives up its weights, so that nothing is known of them any more: no adapter fits.
        """
        self._snapshot = None
        self._updates.release()
        if engine_drops:
            self._manifest = None
            self._adapters.forget()

    async def receive(
        self, sync_id: str, source: WeightSource, deadline_s: float, offer: TransferOffer | None = None
    ) -> int:
        """Fill the staging area by the offered transfer, or as a stream from `source`; the bytes that it took.

        An error for which a stream's source is to blame names it (`argosy.roles.weights.SOURCE`): another may be right.
        """
        if self._finished(sync_id) is not None:
            return 0
        await self._end_receive()
        watched = WatchedSource(source, deadline_s)
        receiving = asyncio.create_task(self._updates.receive(sync_id, watched, deadline_s, offer))
        self._receiving = receiving
        try:
            return await receiving
        except CorruptDataError as error:
            if offer is None or offer.transport == "stream":
                error.metadata.setdefault(SOURCE, name_of(source))
            raise
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self._receiving is receiving or (current is not None and current.cancelling()):
                raise  # the caller's own
            raise StateError(f"weight update {sync_id!r} was replaced while it came in") from None

    async def _end_receive(self) -> None:
        """Give up a receive that runs, and wait a while for its end."""
        receiving, self._receiving = self._receiving, None
        if receiving is not None and not receiving.done():
            receiving.cancel()
            await asyncio.wait({receiving}, timeout=_END_RECEIVE_S)

    def _finished(self, sync_id: str) -> PolicyVersion | None:
        """The version of an update that is done already, as long as it is what the engine serves."""
        version = self._updates.finished(sync_id)
        return version if version is not None and version == self._engine.version else None

    async def finish(self, sync_id: str) -> PolicyVersion:
        """Swap the staged weights in; the version served from now on."""
        done = self._finished(sync_id)
        if done is not None:
            return done
        tensors, manifest = self._updates.staged(sync_id)
        if self._swap is None or self._swap.done():
            self._swap_began = time.monotonic()
            self._swap = asyncio.create_task(self._swap_in(sync_id, tensors, manifest))
        # Shielded: the engine goes on with a swap that it has begun, even if this caller gives up.
        return await asyncio.shield(self._swap)

    async def _swap_in(self, sync_id: str, tensors: Mapping[str, Tensor], manifest: WeightsManifest) -> PolicyVersion:
        async with self._still:
            before, described = self._engine.version, self._manifest
            self._manifest, self._snapshot = None, None
            try:
                if manifest.adapter is not None:
                    await self._adapters.swap_in(manifest.adapter, tensors, manifest.version)
                else:
                    await self._engine.swap_weights(tensors, manifest.version)
                    self._adapters.forget()
            except BaseException:
                if before is not None and self._engine.version == before:
                    self._manifest = described  # the engine has refused before it touched anything
                raise
            self._manifest = manifest
            self._updates.done(sync_id, manifest.version)
        return manifest.version

    async def held_snapshot(self) -> Snapshot:
        """A frozen copy of the weights in use, made on first demand after an update. NotFoundError without any."""
        async with self._still:
            version = self._engine.version
            if version is None:
                raise NotFoundError("this rollout server holds no weights that it could pass on")
            if self._snapshot is None or self._snapshot.manifest.version != version:
                state = await self._engine.held_state()
                self._snapshot = await asyncio.to_thread(self._copy, version, state)
            return self._snapshot

    def _copy(self, version: PolicyVersion, state: Mapping[str, Tensor]) -> Snapshot:
        if self._manifest is not None and self._manifest.adapter is not None:
            raise NotFoundError(
                f"this rollout server holds {version.short} as weights with an adapter in them, not as it was sent: "
                "ask the trainer"
            )
        manifest = self._manifest or build_manifest(version.lineage, version.step, state, self._tied)
        held = shapes_of(state)
        changed = [spec for spec in manifest.tensors if spec.name in held and held[spec.name].dtype != spec.dtype]
        if changed:
            raise NotFoundError(
                f"this rollout server holds {version.short} in {held[changed[0].name].dtype}, not as it was sent"
            )
        return Snapshot(manifest, state)

    # --- WeightSource ------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Always "": in this process."""
        return ""

    async def get_manifest(self) -> WeightsManifest:
        """The version that is served."""
        served = self._engine.version
        if served is not None:
            with self._updates.lent(served) as staging:
                if staging is not None:
                    return staging.manifest
        return await (await self.held_snapshot()).get_manifest()

    async def manifest_of(self, version: PolicyVersion) -> WeightsManifest:
        """That of a version whose bytes are here, also before they are swapped in. NotFoundError of any other."""
        with self._updates.lent(version) as staging:
            if staging is not None:
                return staging.manifest
        manifest = await self.get_manifest()
        if manifest.version != version:
            raise NotFoundError(f"this rollout server holds weights {manifest.version.short}, not {version.short}")
        return manifest

    async def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        """Its bytes, never as deltas: those that came, as they came, while they are here; a copy of the engine's else.

        So a server passes a version on as soon as it has all of it, whether it serves that yet or not.
        """
        with self._updates.lent(version) as staging:
            if staging is not None:
                async for chunk in chunks_of(staging, names):
                    yield chunk
                return
        snapshot = await self.held_snapshot()
        async for chunk in snapshot.stream_weights(version, names):
            yield chunk


class HeldWeights:
    """WeightSource over a server's weights, which exist only once the engine knows its model."""

    def __init__(self, held: Callable[[], ServerWeights]) -> None:
        self._held = held

    @property
    def address(self) -> str:
        """Always "": in this process."""
        return ""

    async def get_manifest(self) -> WeightsManifest:
        """Of the version that is served. StateError before the engine is started."""
        return await self._held().get_manifest()

    async def manifest_of(self, version: PolicyVersion) -> WeightsManifest:
        """Of a version whose bytes are here. StateError before the engine is started."""
        return await self._held().manifest_of(version)

    async def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        """Its bytes."""
        async for chunk in self._held().stream_weights(version, names, base=base):
            yield chunk
