"""A rollout service by address, connected at the first call: channels belong to a loop, builders run in threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from argosy.types.records import Completion, GenerateRequest

if TYPE_CHECKING:
    from argosy.rpc.clients.rollout import RolloutClient


class LazyRollout:
    """What of the Rollout role a judge needs."""

    def __init__(self, address: str, *, max_message_bytes: int) -> None:
        self._address = address
        self._max_message_bytes = max_message_bytes
        self._client: RolloutClient | None = None

    async def generate(self, requests: Sequence[GenerateRequest], *, deadline_s: float) -> AsyncIterator[Completion]:
        """As `argosy.roles.rollout.Rollout`."""
        if self._client is None:
            from argosy.rpc.clients.rollout import RolloutClient
            from argosy.rpc.options import RpcOptions

            options = RpcOptions(max_message_bytes=self._max_message_bytes)
            self._client = RolloutClient(self._address, member_id=f"judge at {self._address}", options=options)
        async for completion in self._client.generate(requests, deadline_s=deadline_s):
            yield completion

    async def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
