"""LoRA adapters on a rollout server: merged into the engine's weights, or given to an engine that keeps them beside."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from argosy.rollout.engines.base import Engine, TakesAdapters
from argosy.types.errors import NotFoundError, WeightsRefusedError
from argosy.types.ids import PolicyVersion
from argosy.types.records import AdapterSpec
from argosy.weightsync.adapter import MISSING_BASE, merge

if TYPE_CHECKING:
    from torch import Tensor


class Adapters:
    """What is under the adapter that an engine serves.

    An engine that merges needs the adapted modules' own weights again for the next adapter: they are kept here, from
    the first adapter on. One that keeps adapters beside its weights (`swap_adapter`) needs nothing.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._digest = ""
        """Of the base, while an adapter is on it."""
        self._own: dict[str, Tensor] = {}
        """MODULE.weight without any adapter, of the modules that have had one; in main memory."""

    def check(self, adapter: AdapterSpec) -> None:
        """Refuse an adapter that can't be put on what the engine holds, before its bytes come.

        Raises:
            WeightsRefusedError: the engine takes no adapters.
            NotFoundError: it holds another base (metadata missing=MISSING_BASE): that has to be sent first.
        """
        if not self._engine.capabilities.adapter_sync:
            raise WeightsRefusedError(
                f"the engine {self._engine.capabilities.engine!r} takes no update of an adapter alone; set "
                "argosy.weight_sync.adapter_only=off (or auto)"
            )
        version = self._engine.version
        if version is None or adapter.base.digest not in (version.digest, self._digest):
            held = "nothing" if version is None else version.short
            raise NotFoundError(
                f"the adapter is for weights {adapter.base.short}, and this server holds {held}: send its base first",
                missing=MISSING_BASE,
            )

    def forget(self) -> None:
        """Whole weights have come: there is no adapter on them."""
        self._digest = ""
        self._own = {}

    async def swap_in(self, adapter: AdapterSpec, tensors: Mapping[str, Tensor], version: PolicyVersion) -> None:
        """Serve base + adapter as `version`, all or nothing, as `Engine.swap_weights`."""
        if isinstance(self._engine, TakesAdapters):
            await self._engine.swap_adapter(adapter, tensors, version)
        else:
            await self._keep(adapter)
            merged = await asyncio.to_thread(merge, adapter, tensors, self._own)  # seconds for a large model
            # Modules that an earlier adapter had, and this one has not, get their own weights back.
            await self._engine.swap_weights(self._own | merged, version)
        self._digest = adapter.base.digest

    async def _keep(self, adapter: AdapterSpec) -> None:
        missing = [name for module in adapter.target_modules if (name := f"{module}.weight") not in self._own]
        if missing:
            held = await self._engine.held_state()
            self._own |= await asyncio.to_thread(_copies, held, missing)


def _copies(held: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    """In main memory: they outlive an engine's sleep, which is there to free the device."""
    return {name: held[name].detach().to("cpu", copy=True) for name in names}
