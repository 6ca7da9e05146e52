"""Ways to move a version's bytes. A new one is a module with `open_transfer` and `receive`, and a line here.

    sender    transfer = await open_transfer(snapshot, plan, options)   → one TransferOffer for each receiver
    receiver  await receive(offer, source, manifest, staging, deadline_s)
    sender    await transfer.close()                                    → nothing of it is left

The controller carries the offers from the one to the others. A receiver fills its own `Staging` and nothing else:
whether the bytes are right is for `staging.finish()` to say, whatever brought them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import cast

from argosy.types.errors import InvalidInputError
from argosy.weightsync.transports.base import SendOptions, Transfer, TransferPlan, Transport

TRANSPORTS = {
    "stream": "argosy.weightsync.transports.stream",
    "collective": "argosy.weightsync.transports.collective",
    "shared_memory": "argosy.weightsync.transports.shared_memory",
    "disk": "argosy.weightsync.transports.disk",
}
"""Name → module, imported when it is first used."""

__all__ = ["TRANSPORTS", "SendOptions", "Transfer", "TransferPlan", "Transport", "load_transport", "release"]


def load_transport(name: str) -> Transport:
    """The named transport. Raises InvalidInputError on an unknown name."""
    if name not in TRANSPORTS or importlib.util.find_spec(TRANSPORTS[name]) is None:
        raise InvalidInputError(f"there is no weight transport {name!r}; this build has {sorted(TRANSPORTS)}")
    return cast(Transport, importlib.import_module(TRANSPORTS[name]))


def release() -> None:
    """Free what transports keep for the next transfer, which then takes a little longer: memory, and processes."""
    for module in TRANSPORTS.values():
        kept = getattr(sys.modules.get(module), "release", None)
        if kept is not None:
            kept()
