"""The four phases of a weight update, as a server goes through them: nothing is swapped before everything is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from argosy.roles.weights import WeightSource
from argosy.types.errors import InvalidInputError, NotFoundError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import TransferOffer, WeightsManifest
from argosy.weightsync.manifest import ShapedLike, check_manifest
from argosy.weightsync.staging import Staging
from argosy.weightsync.transports import load_transport, release
from argosy.weightsync.transports.collective import Call, receive_by

if TYPE_CHECKING:
    from torch import Tensor


class WeightUpdates:
    """At most one update is under way; a new `start` replaces one whose sender went away.

    Args:
        expected: The model's tensors by name.
        tied: The model's redundant name → owner name.
        casts: Accepted (sent dtype, held dtype) pairs.
        collective: Who joins the groups of collective transfers; None: a process of weightsync's own.
    """

    def __init__(
        self,
        expected: Mapping[str, ShapedLike],
        tied: Mapping[str, str],
        casts: Collection[tuple[str, str]],
        collective: Call | None = None,
    ) -> None:
        self._collective = collective
        self._expected = expected
        self._tied = tied
        self._casts = casts
        self._transport = "stream"
        self._sync_id = ""
        self._manifest: WeightsManifest | None = None
        self._staging: Staging | None = None
        self._spare: Staging | None = None
        self._lent: Counter[Staging] = Counter()
        """How often each is being read by those to whom it is passed on."""
        self._complete = False
        self._finished: tuple[str, PolicyVersion] | None = None

    def init_transport(self, transport: str) -> None:
        """Take the next updates' bytes by it. InvalidInputError on a transport that this server lacks."""
        load_transport(transport)
        self._transport = transport

    def start(self, sync_id: str, manifest: WeightsManifest) -> bool:
        """Check the manifest (WeightsRefusedError) and make room for its bytes. Repeating it changes nothing, and is
        False."""
        if not sync_id:
            raise InvalidInputError("sync_id is empty")
        if sync_id == self._sync_id and manifest == self._manifest:
            return False
        check_manifest(manifest, self._expected, self._tied, self._casts)
        self._drop()
        if self.finished(sync_id) is not None:
            self._finished = None  # the same name for other weights: a controller that resumed publishes a step again
        self._sync_id, self._manifest = sync_id, manifest
        return True

    async def receive(
        self, sync_id: str, source: WeightSource, deadline_s: float, offer: TransferOffer | None = None
    ) -> int:
        """Fill the staging area; bytes that it took. A try that fails leaves the update started, to be tried again.

        Without an offer the bytes are pulled from `source` as a stream. InvalidInputError on an offer for another sync
        or version: its sender belongs to a sync that is over.
        """
        manifest = self._started(sync_id)
        if self._complete:
            return 0
        offer = offer or TransferOffer("stream", sync_id, manifest.version, source.address)
        if (offer.sync_id, offer.version) != (sync_id, manifest.version):
            raise InvalidInputError(
                f"the offer is for sync {offer.sync_id!r} of weights {offer.version.short}, the update is "
                f"{sync_id!r} of {manifest.version.short}",
                field="offer",
            )
        # A fresh staging for every try: bytes of a broken one must not count as received. And nobody else's: what a try
        # that was given up has started (a thread, a worker) may write into its memory for a while yet, so that only the
        # memory of one that has ended well is used again.
        spare, self._spare = self._spare, None
        staging = Staging(manifest, reuse=spare if spare is not None and not self._lent[spare] else None)
        del spare
        if offer.transport == "collective" and self._collective is not None:
            await receive_by(self._collective, offer, staging, deadline_s)
        else:
            await load_transport(offer.transport).receive(offer, source, manifest, staging, deadline_s)
        staging.finish()
        if self._manifest is not manifest:
            raise StateError(f"weight update {sync_id!r} was replaced by {self._sync_id!r} while it came in")
        self._staging, self._spare, self._complete = staging, staging, True
        return staging.transferred_byte_count

    @contextmanager
    def lent(self, version: PolicyVersion) -> Iterator[Staging | None]:
        """What has come whole of a version (staged, or swapped in since) for others to read, unchanged until the end of
        the context; None if there is nothing of it, or its memory was needed again."""
        staging = self._spare
        if staging is None or staging.manifest.version != version:
            yield None
            return
        self._lent[staging] += 1
        try:
            yield staging
        finally:
            self._lent[staging] -= 1
            if not self._lent[staging]:
                del self._lent[staging]

    def finished(self, sync_id: str) -> PolicyVersion | None:
        """The version of an update that is done already: a repeated finish gets the first answer."""
        if self._finished is not None and self._finished[0] == sync_id:
            return self._finished[1]
        return None

    def staged(self, sync_id: str) -> tuple[dict[str, Tensor], WeightsManifest]:
        """The owners' tensors, ready to be swapped in, and what they are. StateError if bytes are missing."""
        manifest = self._started(sync_id)
        if self._staging is None or not self._complete:
            raise StateError(f"weight update {sync_id!r} has not received its tensors: call update_weights first")
        tensors = self._staging.finish()
        # A redundant head with bytes of its own equals its owner's (check_manifest), and shares memory with it here.
        return {name: tensor for name, tensor in tensors.items() if name not in self._tied}, manifest

    def done(self, sync_id: str, version: PolicyVersion) -> None:
        """Note that the staged weights are served now; their memory waits for the next update."""
        self._drop()
        self._finished = (sync_id, version)

    def release(self) -> None:
        """Free the room that is kept for the next update's bytes, unless one is under way."""
        if self._manifest is None:
            self._spare = None
            release()

    def _started(self, sync_id: str) -> WeightsManifest:
        if self._manifest is None or sync_id != self._sync_id:
            raise NotFoundError(f"no weight update {sync_id!r} is under way here; call start_weight_update first")
        return self._manifest

    def _drop(self) -> None:
        self._sync_id, self._manifest, self._staging, self._complete = "", None, None, False
