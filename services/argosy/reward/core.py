"""`RewardScorers`: the Reward role in this process, whatever runs it (a gRPC servicer, in-process, a test).

It needs neither torch nor grpc, and keeps no event loop, so it may be built in one thread and used in another.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from argosy.reward.custom import CustomFunction
from argosy.reward.pool import PoolOptions, WorkerPool
from argosy.reward.sandbox.options import SandboxOptions
from argosy.reward.verifiers import find_verifier, known_sources
from argosy.types.errors import InvalidInputError
from argosy.types.ids import SampleId
from argosy.types.records import Abstained, Failed, Outcome, RewardCapabilities, Scored, ScoreRequest, ScoreResult


@dataclass(frozen=True, slots=True)
class RewardOptions:
    """How the scorers run."""

    pool: PoolOptions = field(default_factory=PoolOptions)
    custom: CustomFunction | None = None
    """Scores every sample in place of the built-in verifiers."""
    sandbox: SandboxOptions = field(default_factory=SandboxOptions)
    """Of the code verifiers."""
    memory_limit_bytes: int = 4 * 1024**3
    """Bound on a worker's heap, after imports; 0 is no bound."""
    cpu_limit_s: float = 1.0
    """Processor seconds for a built-in verifier on one answer; one that needs more is too costly to evaluate: 0."""
    max_batch_size: int = 256
    """What clients are told to send at most in one call."""


@dataclass(frozen=True, slots=True)
class RewardStats:
    """Counts since the start. Whether a failure rate is too high is the controller's decision."""

    scored: int
    abstained: int
    failed: Mapping[str, int]
    """Reason → samples."""
    unextracted: int
    """Scored samples in which no answer was found: a high share means that the model's format isn't understood."""
    worker_restarts: int
    unfinished: int

    @property
    def failed_count(self) -> int:
        """All failed samples."""
        return sum(self.failed.values())

    @property
    def error_rate(self) -> float:
        """Failed samples as a share of all; 0 before the first."""
        total = self.scored + self.abstained + self.failed_count
        return self.failed_count / total if total else 0.0


class RewardScorers:
    """Implements `argosy.roles.reward.Reward`."""

    def __init__(self, options: RewardOptions | None = None) -> None:
        """Start the workers. Raises ConfigError if the custom function can't be loaded or called."""
        self._options = options or RewardOptions()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._next_id = 0
        custom = self._options.custom
        settings = {
            "custom": None if custom is None else asdict(custom),
            "sandbox": asdict(self._options.sandbox),
            "timeout_s": self._options.pool.timeout_s,
            "memory_limit_bytes": self._options.memory_limit_bytes,
            "cpu_limit_s": min(self._options.cpu_limit_s, self._options.pool.timeout_s / 2),
        }
        self._pool = WorkerPool(self._options.pool, settings)

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        """One outcome per item, in the items' order and matched by id.

        A sample that isn't judged within `deadline_s` (seconds) is Failed("timeout"). Raises InvalidInputError for a
        repeated id, OverloadedError if the queue has no room for the whole batch.
        """
        repeated = [sample_id for sample_id, count in Counter(item.sample_id for item in items).items() if count > 1]
        if repeated:
            raise InvalidInputError(f"sample {repeated[0]} is twice in one batch")
        outcomes: dict[SampleId, Outcome] = {
            item.sample_id: _unknown(item.data_source) for item in items if not self.knows(item.data_source)
        }
        to_judge = [item for item in items if item.sample_id not in outcomes]
        for item, outcome in zip(to_judge, await self._judge(to_judge, deadline_s), strict=True):
            outcomes[item.sample_id] = outcome
        self._count(outcomes.values())
        return [ScoreResult(item.sample_id, outcomes[item.sample_id]) for item in items]

    async def capabilities(self) -> RewardCapabilities:
        """Its data sources: ("*",) with a custom function; "reasoning_gym/*" stands for every name that starts so."""
        sources = ("*",) if self._options.custom is not None else known_sources()
        return RewardCapabilities(data_sources=sources, max_batch_size=self._options.max_batch_size)

    def knows(self, data_source: str) -> bool:
        """Whether there is a scorer for the data source."""
        return self._options.custom is not None or find_verifier(data_source) is not None

    def stats(self) -> RewardStats:
        """Counts since the start."""
        with self._lock:
            return RewardStats(
                scored=self._counts["scored"],
                abstained=self._counts["abstained"],
                failed=dict(self._failures),
                unextracted=self._counts["unextracted"],
                worker_restarts=self._pool.restarts,
                unfinished=self._pool.unfinished,
            )

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return self._pool.pids

    def shutdown(self) -> None:
        """End the workers, at once. May be called again."""
        self._pool.close()

    async def close(self) -> None:
        """`shutdown` without blocking the event loop."""
        await asyncio.to_thread(self.shutdown)

    async def _judge(self, items: Sequence[ScoreRequest], deadline_s: float) -> list[Outcome]:
        if not items:
            return []
        futures = self._pool.submit([self._message(item) for item in items], deadline_s=deadline_s)
        waiting = [asyncio.wrap_future(future) for future in futures]
        try:
            await asyncio.wait(waiting, timeout=deadline_s)
            return [future.result() if future.done() else _too_late(deadline_s) for future in waiting]
        finally:
            for future in waiting:
                future.cancel()  # on our caller's cancellation too: what waits in the queue is then never run

    def _message(self, item: ScoreRequest) -> dict[str, Any]:
        self._next_id += 1
        return {
            "id": self._next_id,
            "data_source": item.data_source,
            "solution": item.response_text,
            "ground_truth": item.ground_truth,
            "extra_info": item.extra_info,
        }

    def _count(self, outcomes: Iterable[Outcome]) -> None:
        with self._lock:
            for outcome in outcomes:
                if isinstance(outcome, Scored):
                    self._counts["scored"] += 1
                    self._counts["unextracted"] += outcome.parts.get("extracted") == 0.0
                elif isinstance(outcome, Abstained):
                    self._counts["abstained"] += 1
                else:
                    self._failures[outcome.reason] += 1


def _unknown(data_source: str) -> Failed:
    return Failed("unknown_data_source", f"no scorer for data_source {data_source!r}; see custom_reward_function.path")


def _too_late(deadline_s: float) -> Failed:
    return Failed("timeout", f"not judged within the call's deadline of {deadline_s:.3g} s")
