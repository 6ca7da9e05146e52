"""What every transport has in common: the plan of a transfer, an open transfer, and the two functions of a module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from argosy.roles.weights import WeightSource
from argosy.types.errors import InvalidInputError
from argosy.types.records import TransferOffer, WeightsManifest
from argosy.weightsync.chain import ChainSettings

if TYPE_CHECKING:
    from argosy.weightsync.snapshot import Snapshot
    from argosy.weightsync.staging import Staging


@dataclass(frozen=True, slots=True)
class SendOptions:
    """The sender's settings; what receivers must know of them travels in each offer."""

    bucket_bytes: int = 64 << 20
    """collective: bytes of one message. Smaller ones cost more round trips, larger ones more memory on a GPU."""
    streams: int = 2
    """stream: how many streams a receiver opens side by side. shared_memory: threads that copy and check."""
    host: str = "127.0.0.1"
    """collective: address to listen on for receivers. If it is a wildcard, groups listen where receivers come from."""
    backend: str = "auto"
    """collective: "gloo", "nccl", or "auto": NCCL where sender and receivers have each a GPU of their own."""
    device: str = "auto"
    """collective: what the sender computes on ("cpu", "cuda:1", "auto": the first GPU if there is one)."""
    broadcast: bool = False
    """collective: one group of all receivers in place of a pair for each. Saves the sender's bandwidth; a receiver that
    dies then costs the others this try too."""
    folder: str = ""
    """disk: a folder that sender and receivers share."""
    chain: ChainSettings = field(default_factory=ChainSettings)
    """disk: how many versions stay, and how many of them are whole."""
    delta: bool = False
    """Tell with each version what changed since the one before: to receivers of streams that hold that, and on disk."""


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """One transfer: for which sync, to how many, until when."""

    sync_id: str
    receiver_count: int
    """At least 1."""
    deadline_s: float
    """Seconds from now after which nobody may wait for it any more."""
    fence: str
    """Names this try and no other (run, term, sync and a random part): groups and files are named by it."""

    def __post_init__(self) -> None:
        if not self.sync_id or self.receiver_count < 1 or self.deadline_s <= 0:
            raise InvalidInputError(
                "a transfer needs a sync_id, at least one receiver and a deadline above 0, got "
                f"{self.sync_id!r}, {self.receiver_count} and {self.deadline_s:g} s"
            )


METRIC = "metric/"
"""Before the name of an offer's option that is a figure for the run's metrics, "sync/NAME" there."""


def delta_metrics(snapshot: Snapshot) -> dict[str, str]:
    """What an offer tells of a snapshot's delta: how many times smaller it is, and MB/s (of weights) of its making."""
    found: dict[str, float] = {}
    if snapshot.changed_share is not None:
        found["changed_share"] = snapshot.changed_share
    if snapshot.delta is not None:
        whole = snapshot.delta.whole_size_bytes
        found["delta_ratio"] = whole / max(1, snapshot.delta.size_bytes)
        found["delta_encode_mb_s"] = whole / 1e6 / max(1e-9, snapshot.delta.seconds)
    return {f"{METRIC}{name}": repr(value) for name, value in found.items()}


class Transfer(Protocol):
    """A transfer that is open at the sender."""

    @property
    def offers(self) -> tuple[TransferOffer, ...]:
        """One for each receiver."""
        ...

    async def close(self) -> None:
        """End it, also in the middle: nothing of it stays (processes, files, memory). May be called again."""
        ...


class Transport(Protocol):
    """A module of this package."""

    async def open_transfer(self, snapshot: Snapshot, plan: TransferPlan, options: SendOptions) -> Transfer:
        """Offer the snapshot to the plan's receivers. The caller keeps the snapshot alive until it closes this.

        Raises InvalidInputError where the transport can't work here.
        """
        ...

    async def receive(
        self, offer: TransferOffer, source: WeightSource, manifest: WeightsManifest, staging: Staging, deadline_s: float
    ) -> None:
        """Fill `staging`, within `deadline_s` seconds; `staging.finish()` then tells whether it is whole.

        Args:
            offer: Ticket from `open_transfer`; its version is the manifest's (checked by the caller).
            source: The sender's WeightSource: what "stream" pulls from, others may ignore it.
            manifest: Of the version, checked against the model already.
            staging: Empty, of this manifest.
            deadline_s: Seconds for all of it.

        Raises:
            DeadlineError: the time is up. Whatever was received is left in the staging.
            CorruptDataError: bytes that don't belong or have a wrong checksum.
            NotFoundError: the offer's endpoint has gone, or holds another version.
            UnavailableError: the sender died.
        """
        ...


@dataclass(frozen=True, slots=True)
class PlainTransfer:
    """A transfer that leaves nothing to clean up."""

    offers: tuple[TransferOffer, ...]

    async def close(self) -> None:
        """Nothing to do."""
