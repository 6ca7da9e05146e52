"""The servers of one reward service: replicas of each other, which join and leave while the run goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence

from argosy.controller.rewards.alike import difference
from argosy.controller.rewards.calls import (
    CallStats,
    Replica,
    call,
    is_worth_another_server,
)
from argosy.controller.rewards.rounds import Round, batches
from argosy.roles.reward import Reward
from argosy.rpc.errors import as_argosy_error
from argosy.rpc.retry import RetryPolicy
from argosy.types.errors import (
    ArgosyError,
    DeadlineError,
    MessageTooLargeError,
    OverloadedError,
    UnavailableError,
)
from argosy.types.failures import failed
from argosy.types.ids import SampleId
from argosy.types.records import Outcome, RewardCapabilities, ScoreRequest

log = logging.getLogger(__name__)

_REST_S = 5.0
"""A replica that couldn't be reached is left alone for so long while others are there."""
_OUTAGE_S = 30.0
"""So long servers that were there are waited for when none can be reached: a start takes some seconds, or twenty on a
machine that does much else. A longer outage costs no sample more than its tries."""
_CAPABILITIES_DEADLINE_S = 30.0
_CHECK_DEADLINE_S = 5.0


class ReplicaSet:
    """Scores samples on the least loaded of a service's servers.

    A call that a server doesn't answer goes to another one, up to `policy.max_attempts` tries with back-off; while none
    can be reached at all, it waits for half a minute. A sample that comes back as failed is sent again, to another
    server if there is one, up to `sample_attempts` tries; alone if others of its call failed alike. Nothing is sent
    twice if the service forbids repeating, however surely it never arrived. All of it is bounded by the caller's
    deadline; what is not judged by then is failed, never an exception.

    A server gets its first sample after it has said the same of itself as its siblings; one that says something else
    is refused.
    """

    def __init__(self, name: str, *, policy: RetryPolicy | None = None, sample_attempts: int = 2) -> None:
        self.name = name
        self._policy = policy or RetryPolicy()
        self._sample_attempts = sample_attempts
        self._replicas: dict[str, Replica] = {}
        self._capabilities: RewardCapabilities | None = None
        self._told_by = ""
        """Whose capabilities they are."""
        self._refused = ""
        """Why the newest server that was refused was so."""
        self._answered = False
        """Whether any server has ever judged anything."""
        self._out_since: float | None = None
        """When nobody could be reached for the first time since then; None: somebody can."""

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
        problem = self._nobody()
        for replica in list(self._replicas.values()) if self._capabilities is None else ():
            try:
                self._capabilities, self._told_by = await _ask(replica, _CAPABILITIES_DEADLINE_S), replica.key
                replica.checked = True
                break
            except ArgosyError as error:
                problem = error
        if self._capabilities is None:
            raise problem
        return self._capabilities

    def _nobody(self) -> ArgosyError:
        why = f" ({self._refused})" if self._refused else ""
        return UnavailableError(f"the reward service {self.name!r} has no server{why}")

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
        found = Round()
        for attempt in range(1, attempts + 1):
            found = await self._try(pending, found, capabilities, end, stats)
            outcomes |= found.outcomes
            pending = found.pending(pending)
            wait_s = self._policy.backoff_s(attempt)
            if not pending or attempt == attempts or time.monotonic() + wait_s >= end:
                break
            log.info("%s: %d samples failed and are tried again", self.name, len(pending))
            stats.retried_samples += len(pending)
            await asyncio.sleep(wait_s)
        return outcomes

    async def _try(
        self,
        items: Sequence[ScoreRequest],
        before: Round,
        capabilities: RewardCapabilities,
        end: float,
        stats: CallStats,
    ) -> Round:
        found = Round()
        alone = [item for item in items if item.sample_id in before.suspects]
        others = [item for item in items if item.sample_id not in before.suspects]
        async with asyncio.TaskGroup() as tasks:
            for batch in (*batches(alone, 1), *batches(others, capabilities.max_batch_size)):
                tasks.create_task(self._send(batch, capabilities, before.answered, end, stats, found))
        return found

    async def _send(
        self,
        batch: Sequence[ScoreRequest],
        capabilities: RewardCapabilities,
        avoided: Collection[str],
        end: float,
        stats: CallStats,
        found: Round,
    ) -> None:
        """One call, on other servers again while nobody answers."""
        attempts = 1 if capabilities.repeat_forbidden else self._policy.max_attempts
        tried = set(avoided)
        error: ArgosyError = DeadlineError(f"{self.name}: not judged within the deadline")
        attempt = tries = 0
        while attempt < attempts:
            left_s = end - time.monotonic()
            if left_s <= 0:
                break
            attempt, tries = attempt + 1, tries + 1
            replica = await self._chosen(tried, end)
            if isinstance(replica, ArgosyError):
                error = replica
                tried |= self._replicas.keys()
                if self._is_waited_for():
                    attempt -= 1  # nothing was sent
            else:
                # Half of what is left, where another server could still do it in the other half.
                share = 0.5 if attempt < attempts and len(self._replicas) > 1 else 1.0
                try:
                    found.take(await call(replica, batch, left_s * share, stats))
                    found.answered.add(replica.key)
                    self._answered, self._out_since = True, None
                    return
                except MessageTooLargeError as problem:
                    # By halves, until the one that is too large is alone. Not where repeating is forbidden: it may be
                    # the answer that was too large. The client has split such a call by size before it sent any of it.
                    if len(batch) > 1 and not capabilities.repeat_forbidden:
                        for half in batches(batch, (len(batch) + 1) // 2):
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
                if isinstance(error, UnavailableError):
                    replica.checked = False  # it may come back as another one
                tried.add(replica.key)
            wait_s = self._wait_s(tries, error, tried)
            if attempt == attempts or time.monotonic() + wait_s >= end:
                break
            stats.retried_calls += 1
            level = logging.WARNING if tries <= attempts else logging.DEBUG
            log.log(level, "%s: a call failed and is tried again in %.2f s: %s", self.name, wait_s, error)
            await asyncio.sleep(wait_s)
        found.take(dict.fromkeys([item.sample_id for item in batch], failed(error)))

    def _is_waited_for(self) -> bool:
        """Whether an outage is still so short that servers may be back soon: then it costs no sample its tries."""
        now = time.monotonic()
        self._out_since = now if self._out_since is None else self._out_since
        return self._answered and not self._refused and now - self._out_since < _OUTAGE_S

    def _wait_s(self, attempt: int, error: ArgosyError, tried: Collection[str]) -> float:
        """Nothing while there is a server that wasn't tried; else the back-off, and what an overloaded one asks for."""
        if any(key not in tried for key in self._replicas):
            return 0.0
        asked_s = error.retry_after_s if isinstance(error, OverloadedError) else 0.0
        return self._policy.backoff_s(attempt) + asked_s

    async def _chosen(self, tried: Collection[str], end: float) -> Replica | ArgosyError:
        """A server that scores as its siblings do, or why there is none. No sample is sent to find out."""
        problem, silent = self._nobody(), set[str]()
        while (replica := self._choose(tried, silent)) is not None:
            if replica.checked:
                return replica
            try:
                told = await _ask(replica, min(_CHECK_DEADLINE_S, end - time.monotonic()))
            except ArgosyError as error:
                problem = error
                silent.add(replica.key)
                replica.rests_until = time.monotonic() + _REST_S
                continue
            known = self._capabilities or told
            self._refused = difference(told, known, replica.key, self._told_by)
            replica.checked = not self._refused
            if self._refused and self._replicas.get(replica.key) is replica:
                log.error("%s: a server is refused: %s; they can't stand in for each other", self.name, self._refused)
                self.remove(replica.key)
        return problem if silent else self._nobody()

    def _choose(self, tried: Collection[str], silent: Collection[str]) -> Replica | None:
        """The least loaded of those that were not tried and don't rest; if there is none, of those that could be."""
        now = time.monotonic()
        return min(
            (one for one in self._replicas.values() if one.key not in silent),
            key=lambda one: (one.key in tried, one.rests_until > now, one.in_flight, one.rests_until),
            default=None,
        )


async def _ask(replica: Replica, timeout_s: float) -> RewardCapabilities:
    """What a server says that it can do. Raises ArgosyError."""
    try:
        async with asyncio.timeout(timeout_s):
            return await replica.reward.capabilities()
    except TimeoutError as error:
        raise DeadlineError(f"{replica.key}: no answer within {timeout_s:.3g} s") from error
    except Exception as error:
        raise as_argosy_error(error) from error
