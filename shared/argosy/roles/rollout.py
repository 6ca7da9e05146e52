"""The rollout role: prompts in, sampled tokens with their log-probs out, and weights in four phases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from argosy.roles.weights import WeightSource
from argosy.types.ids import PolicyVersion
from argosy.types.records import (
    Completion,
    GenerateRequest,
    Mutation,
    RolloutStatus,
    TokenRun,
    TransferOffer,
    WeightsManifest,
)


class Rollout(Protocol):
    """One rollout server (or the engine in this process)."""

    def generate(
        self,
        requests: Sequence[GenerateRequest],
        *,
        deadline_s: float,
        on_run: Callable[[TokenRun], None] | None = None,
    ) -> AsyncIterator[Completion]:
        """Yield each sample's completion as it ends, in any order, exactly one per request.

        A sample that can't be finished is yielded with FinishReason.FAILED or ABORTED and what it has; the iterator
        itself raises only if the whole server is lost (UnavailableError), out of room (OverloadedError), past
        `deadline_s` (DeadlineError), takes no samples now (StateError: stale, draining, asleep) or if a request is
        malformed (InvalidInputError names the field). A caller that leaves the iterator ends what still runs.

        `on_run` gets the tokens of running samples at intervals, for people who watch them come. A sample's last ones
        may come in its completion alone, which has all of them.
        """
        ...

    async def abort(self, keys: Sequence[str] | None, ctx: Mutation) -> int:
        """End the named requests (`GenerateRequest.key`), or all with None; returns how many were ended.

        The tokens they have are yielded by `generate` with FinishReason.ABORTED.
        """
        ...

    async def pause(self, mode: str, ctx: Mutation) -> None:
        """Stop sampling: "keep" leaves requests in their slots, "abort" ends them."""
        ...

    async def resume(self, ctx: Mutation) -> None:
        """Go on sampling."""
        ...

    async def drain(self, ctx: Mutation) -> None:
        """Take no new requests, finish the running ones."""
        ...

    async def sleep(self, level: int, ctx: Mutation) -> None:
        """Free memory until `wake`: 1 gives up caches and buffers, 2 the weights as well (stale when it wakes).

        Nothing happens if it sleeps already. Raises StateError while samples are in flight, and InvalidInputError on a
        level that the engine lacks.
        """
        ...

    async def wake(self, ctx: Mutation) -> None:
        """Take the memory again. Nothing happens if it is awake."""
        ...

    async def status(self) -> RolloutStatus:
        """How it is doing."""
        ...

    async def init_weight_transfer(self, transport: str, ctx: Mutation) -> None:
        """Agree on a transport ("stream" …). Raises InvalidInputError on one that the server lacks."""
        ...

    async def start_weight_update(self, sync_id: str, manifest: WeightsManifest, ctx: Mutation) -> None:
        """Check the manifest against the model before the first byte; WeightsRefusedError leaves the old version on."""
        ...

    async def update_weights(
        self, sync_id: str, source: WeightSource, ctx: Mutation, offer: TransferOffer | None = None
    ) -> int:
        """Receive every tensor of the started manifest into a staging area; each checksum is checked.

        Returns the bytes that it took: fewer than the weights where deltas came, 0 if they were there already.
        `offer` is this server's ticket to a transfer that the sender has opened; None: pull from `source` by "stream".
        """
        ...

    async def finish_weight_update(self, sync_id: str, ctx: Mutation) -> PolicyVersion:
        """Swap the staged weights in, all or nothing, clear the prefix cache, and return the version now served."""
        ...
