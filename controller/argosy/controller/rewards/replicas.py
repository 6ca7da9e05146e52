"""The servers of one reward service: replicas of each other, which join and leave while the run goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from argosy.controller.rewards.calls import (
    CallStats,
    Replica,
    call,
    failed,
    is_worth_another_server,
    is_worth_repeating,
    reason_of,
)
from argosy.roles.reward import Reward
from argosy.rpc.retry import RetryPolicy
from argosy.types.errors import (
    ArgosyError,
    DeadlineError,
    MessageTooLargeError,
    OverloadedError,
    UnavailableError,
)
from argosy.types.ids import SampleId
from argosy.types.records import Outcome, RewardCapabilities, ScoreRequest

log = logging.getLogger(__name__)

_REST_S = 5.0
"""A replica that couldn't be reached is left alone for so long while others are there."""
_CAPABILITIES_DEADLINE_S = 30.0


@dataclass(slots=True)
class _Round:
    """One try of some samples: outcomes, and who gave them."""

    outcomes: dict[SampleId, Outcome] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)


class ReplicaSet:
    """Scores samples on the least loaded of a service's servers.

    A call that a server doesn't answer goes to another one, up to `policy.max_attempts` tries with back-off. A sample
    that comes back as failed is sent again, to another server if there is one, up to `sample_attempts` tries. Neither
    happens if the service forbids repeating. All of it is bounded by the caller's deadline; what is not judged by then
    is failed, never an exception.
    """

    def __init__(self, name: str, *, policy: RetryPolicy | None = None, sample_attempts: int = 2) -> None:
        self.name = name
        self._policy = policy or RetryPolicy()
        self._sample_attempts = sample_attempts
        self._replicas: dict[str, Replica] = {}
        self._capabilities: RewardCapabilities | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Who is there."""
        return tuple(self._replicas)

    def add(self, key: str, reward: Reward) -> None:
        """A server joins, or comes back as another life of itself."""
        self._replicas[key] = Replica(key, reward)

    def remove(self, key: str) -> None:
        """A server leaves: it gets nothing new; what it is judging may still come back."""
        self._replicas.pop(key, None)

    async def capabilities(self) -> RewardCapabilities:
        """Of the first server that tells, and then kept. Raises the last error if none does."""
        if self._capabilities is None:
            self._capabilities = await self._ask()
        return self._capabilities

    async def _ask(self) -> RewardCapabilities:
        problem: ArgosyError = UnavailableError(f"the reward service {self.name!r} has no server")
        for replica in list(self._replicas.values()):
            try:
                async with asyncio.timeout(_CAPABILITIES_DEADLINE_S):
                    return await replica.reward.capabilities()
            except ArgosyError as error:
                problem = error
            except TimeoutError:
                problem = DeadlineError(f"{replica.key}: no answer within {_CAPABILITIES_DEADLINE_S:g} s")
        raise problem

    async def score(
        self, items: Sequence[ScoreRequest], *, deadline_s: float, stats: CallStats | None = None
    ) -> dict[SampleId, Outcome]:
        """An outcome for every item."""
        stats = CallStats() if stats is None else stats
        end = time.monotonic() + deadline_s
        try:
            capabilities = await self.capabilities()
        except ArgosyError as error:
            return dict.fromkeys([item.sample_id for item in items], failed(error))
        attempts = 1 if capabilities.repeat_forbidden else self._sample_attempts
        outcomes: dict[SampleId, Outcome] = {}
        pending: Sequence[ScoreRequest] = items
        avoided: set[str] = set()
        size = capabilities.max_batch_size
        for attempt in range(1, attempts + 1):
            found = await self._try(pending, size, capabilities, avoided, end, stats)
            outcomes |= found.outcomes
            pending = [item for item in pending if is_worth_repeating(outcomes[item.sample_id])]
            wait_s = self._policy.backoff_s(attempt)
            if not pending or attempt == attempts or time.monotonic() + wait_s >= end:
                break
            log.info("%s: %d samples failed and are tried again", self.name, len(pending))
            stats.retried_samples += len(pending)
            avoided = found.answered
            if any(reason_of(outcomes[item.sample_id]) == "service_error" for item in pending):
                size = 1  # one sample that a server can't take must not cost the others of its call
            await asyncio.sleep(wait_s)
        return outcomes

    async def _try(
        self,
        items: Sequence[ScoreRequest],
        size: int,
        capabilities: RewardCapabilities,
        avoided: Collection[str],
        end: float,
        stats: CallStats,
    ) -> _Round:
        found = _Round()
        async with asyncio.TaskGroup() as tasks:
            for batch in _batches(items, size):
                tasks.create_task(self._send(batch, capabilities, avoided, end, stats, found))
        return found

    async def _send(
        self,
        batch: Sequence[ScoreRequest],
        capabilities: RewardCapabilities,
        avoided: Collection[str],
        end: float,
        stats: CallStats,
        found: _Round,
    ) -> None:
        """One call, on other servers again while nobody answers."""
        attempts = 1 if capabilities.repeat_forbidden else self._policy.max_attempts
        tried = set(avoided)
        error: ArgosyError = DeadlineError(f"{self.name}: not judged within the deadline")
        for attempt in range(1, attempts + 1):
            left_s = end - time.monotonic()
            if left_s <= 0:
                break
            replica = self._choose(tried)
            if replica is None:
                error = UnavailableError(f"the reward service {self.name!r} has no server left")
            else:
                # Half of what is left, where another server could still do it in the other half.
                share = 0.5 if attempt < attempts and len(self._replicas) > 1 else 1.0
                try:
                    found.outcomes |= await call(replica, batch, left_s * share, stats)
                    found.answered.add(replica.key)
                    return
                except MessageTooLargeError as problem:
                    if len(batch) > 1:  # by halves, until the one that is too large is alone
                        for half in _batches(batch, (len(batch) + 1) // 2):
                            await self._send(half, capabilities, avoided, end, stats, found)
                        return
                    error = problem
                except ArgosyError as problem:
                    error = problem
                if not is_worth_another_server(error):
                    found.answered.add(replica.key)
                    break
                if not isinstance(error, OverloadedError):
                    replica.rests_until = time.monotonic() + _REST_S
                tried.add(replica.key)
            wait_s = self._wait_s(attempt, error, tried)
            if attempt == attempts or time.monotonic() + wait_s >= end:
                break
            stats.retried_calls += 1
            log.warning("%s: a call failed and is tried again in %.2f s: %s", self.name, wait_s, error)
            await asyncio.sleep(wait_s)
        found.outcomes |= dict.fromkeys([item.sample_id for item in batch], failed(error))

    def _wait_s(self, attempt: int, error: ArgosyError, tried: Collection[str]) -> float:
        """Nothing while there is a server that wasn't tried; else the back-off, and what an overloaded one asks for."""
        if any(key not in tried for key in self._replicas):
            return 0.0
        asked_s = error.retry_after_s if isinstance(error, OverloadedError) else 0.0
        return self._policy.backoff_s(attempt) + asked_s

    def _choose(self, tried: Collection[str]) -> Replica | None:
        """The least loaded of those that were not tried and don't rest; if there is none, of those that could be."""
        now = time.monotonic()
        return min(
            self._replicas.values(),
            key=lambda one: (one.key in tried, one.rests_until > now, one.in_flight, one.rests_until),
            default=None,
        )


def _batches(items: Sequence[ScoreRequest], size: int) -> Iterator[Sequence[ScoreRequest]]:
    size = max(size, 1)
    for start in range(0, len(items), size):
        yield items[start : start + size]
