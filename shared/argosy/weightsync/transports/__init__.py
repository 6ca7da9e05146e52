"""Ways to move a version's bytes. A new one is a module with the same `receive`, and a line here."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from argosy.roles.weights import WeightSource
from argosy.types.errors import InvalidInputError
from argosy.types.records import WeightsManifest
from argosy.weightsync.staging import Staging

TRANSPORTS = {
    "stream": "argosy.weightsync.transports.stream:receive",
}


class Receive(Protocol):
    """Fill `staging` from `source`; raises DeadlineError, CorruptDataError or what the source raises."""

    async def __call__(
        self, source: WeightSource, manifest: WeightsManifest, staging: Staging, deadline_s: float
    ) -> None:
        """Return when the source has sent all it will; `staging.finish()` then tells whether it is whole."""
        ...


def load_transport(name: str) -> Receive:
    """The named transport's `receive`. Raises InvalidInputError on an unknown name."""
    if name not in TRANSPORTS:
        raise InvalidInputError(f"there is no weight transport {name!r}; this server has {sorted(TRANSPORTS)}")
    module, _, attribute = TRANSPORTS[name].partition(":")
    return cast(Receive, getattr(importlib.import_module(module), attribute))
