"""How busy the rollout servers were while a step was generated, from their own status."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from argosy.roles.rollout import Rollout
from argosy.types.errors import ArgosyError
from argosy.types.records import RolloutStatus

log = logging.getLogger(__name__)

FIRST_LOOK_S = 0.2
LONGEST_PAUSE_S = 2.0
"""Between two looks; the pauses double from the first to this."""
ANSWER_TIMEOUT_S = 1.0
"""Generation waits for the looks before and after it: a server that is slower to answer is passed over."""

_COUNTERS = (
    "generated_token_count", "prompt_token_count", "prompt_cached_token_count", "refused_sample_count",
)  # fmt: skip


@dataclass(slots=True)
class _Seen:
    """Of one step so far."""

    seconds: float = 0.0
    grown: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTERS, 0))
    counted: bool = False
    """Whether any server was seen twice: else nobody knows what has grown."""
    looks: int = 0
    """While samples ran: what follows was seen in these."""
    kv_used_frac: float = 0.0
    running: int = 0
    waiting: int = 0


class ServerLoad:
    """Looks at the servers now and then during generation, and once at its end.

    Args:
        members: The servers to look at, by member id, asked for anew at each look.
    """

    def __init__(self, members: Callable[[], Mapping[str, Rollout]]) -> None:
        self._members = members
        self._last: dict[str, RolloutStatus] = {}
        self._seen = _Seen()

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """What is done within it is looked at. A server that can't tell is passed over: whether it is lost, those who
        wait for its samples find out."""
        self._last.clear()  # what grew before (validation, the parity check) is not this step's
        await self._look(busy=False)
        began = time.monotonic()
        watching = asyncio.create_task(self._keep_looking())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        self._seen.seconds += time.monotonic() - began
        await self._look(busy=False)

    def metrics(self) -> dict[str, float]:
        """Of everything watched since the last call; nothing at all if no server told enough."""
        seen, self._seen = self._seen, _Seen()
        if not seen.counted or not seen.seconds:
            return {}
        prompt_tokens = seen.grown["prompt_token_count"]
        found = {
            "rollout/tokens_per_second": seen.grown["generated_token_count"] / seen.seconds,
            "rollout/refused_samples": float(seen.grown["refused_sample_count"]),
        }
        if seen.looks:  # else generation was over before the first look: rather nothing than a made-up 0
            found |= {
                "rollout/kv_used_frac": seen.kv_used_frac,
                "rollout/running_samples/max": float(seen.running),
                "rollout/waiting_samples/max": float(seen.waiting),
            }
        if prompt_tokens:
            found["rollout/prompt_cache_hit_rate"] = seen.grown["prompt_cached_token_count"] / prompt_tokens
        return found

    async def _keep_looking(self) -> None:
        pause_s = FIRST_LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            await self._look()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _look(self, *, busy: bool = True) -> None:
        servers = self._members()
        found = await asyncio.gather(*(_ask(name, server) for name, server in servers.items()))
        told = {name: status for name, status in zip(servers, found, strict=True) if status is not None}
        for name in told.keys() & self._last.keys():  # one that is seen first may have grown before this step
            self._grow(self._last[name], told[name])
        if busy and told:
            self._compare(told.values())
        self._last |= told

    def _grow(self, last: RolloutStatus, status: RolloutStatus) -> None:
        self._seen.counted = True
        for counter in _COUNTERS:
            now, before = getattr(status, counter), getattr(last, counter)
            self._seen.grown[counter] += now - before if now >= before else now  # less: the server began anew

    def _compare(self, statuses: Iterable[RolloutStatus]) -> None:
        seen, statuses = self._seen, list(statuses)
        seen.looks += 1
        total = sum(status.kv_total_tokens for status in statuses)
        if total:
            seen.kv_used_frac = max(seen.kv_used_frac, sum(status.kv_used_tokens for status in statuses) / total)
        seen.running = max(seen.running, sum(status.running_count for status in statuses))
        seen.waiting = max(seen.waiting, sum(status.waiting_count for status in statuses))


async def _ask(name: str, server: Rollout) -> RolloutStatus | None:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await server.status()
    except (ArgosyError, TimeoutError) as error:
        log.debug("%s doesn't tell how busy it is: %s", name, error)
        return None
