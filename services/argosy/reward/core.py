"""`RewardScorers`: the Reward role in this process, whatever runs it (a gRPC servicer, in-process, a test).

It needs neither torch nor grpc, and keeps no event loop, so it may be built in one thread and used in another.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from argosy.reward.custom import CustomFunction
from argosy.reward.pool import PoolOptions, WorkerPool
from argosy.reward.verifiers import find_verifier, known_sources
from argosy.reward.verifiers.defaults import check_scorer_kwargs, with_defaults
from argosy.reward.verifiers.penalties import TOKEN_COUNT, wants_tokens
from argosy.reward.waiting import checked
from argosy.sandbox.group import sweep
from argosy.sandbox.options import SandboxError, SandboxOptions
from argosy.types.ids import SampleId
from argosy.types.records import Abstained, Failed, Outcome, RewardCapabilities, Scored, ScoreRequest, ScoreResult

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RewardOptions:
    """How the scorers run."""

    pool: PoolOptions = field(default_factory=PoolOptions)
    custom: CustomFunction | None = None
    """Scores every sample in place of the built-in verifiers."""
    sandbox: SandboxOptions = field(default_factory=SandboxOptions)
    """Of the code verifiers."""
    scorer_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Options of built-in verifiers by data source, see `verifiers.defaults`."""
    memory_limit_bytes: int = 4 * 1024**3
    """Bound on a worker's heap, after imports; 0 is no bound."""
    cpu_limit_s: float = 1.0
    """Processor seconds for a built-in verifier on one answer; one that needs more is Failed("costly"). The
    evaluation of an answer's own expression isn't in it: that has a limit in `verifiers.algebra`, and beyond it the
    answer is wrong."""
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
    put_aside: int = 0
    """Samples that were judged in the slow lane: each of them cost many times what others do."""

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
        """Start the workers. Raises ConfigError if the custom function can't be loaded or called, or an option of a
        verifier is wrong."""
        self._options = options or RewardOptions()
        check_scorer_kwargs(self._options.scorer_kwargs)
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
        pool = self._options.pool
        if custom is not None:  # what it holds in memory, and how many calls it bears at once, is its owner's business
            pool = replace(pool, slow_count=0)
        self._pool = WorkerPool(pool, settings, least_quota_s=_least_quota_s)

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        """One outcome per item, in the items' order and matched by id.

        A sample that isn't judged within `deadline_s` (seconds) is Failed("timeout"). Raises InvalidInputError for a
        repeated id, OverloadedError if the queue has no room for the whole batch.
        """
        checked(items)
        outcomes: dict[SampleId, Outcome] = {
            item.sample_id: _unknown(item.data_source) for item in items if not self.knows(item.data_source)
        }
        to_judge = [item for item in items if item.sample_id not in outcomes]
        for item, outcome in zip(to_judge, await self._judge(to_judge, deadline_s), strict=True):
            outcomes[item.sample_id] = outcome
        self._count(outcomes.values())
        return [ScoreResult(item.sample_id, outcomes[item.sample_id]) for item in items]

    async def capabilities(self) -> RewardCapabilities:
        """Its data sources: ("*",) with a custom function that names none; "reasoning_gym/*" stands for every name that
        starts so."""
        if self._options.custom is None:
            return RewardCapabilities(
                known_sources(),
                needs_token_ids=wants_tokens(self._options.scorer_kwargs),
                max_batch_size=self._options.max_batch_size,
                name="rules",
            )
        traits = self._pool.traits
        return RewardCapabilities(
            data_sources=tuple(traits["data_sources"]),
            needs_token_ids=bool({"prompt_ids", "response_ids"} & self._fields),
            max_batch_size=min(self._options.max_batch_size, traits["max_batch_size"]),
            needs_messages="messages" in self._fields,
            repeat_forbidden=traits["repeat_forbidden"],
            name=traits["name"] or self._options.custom.name,
            version=traits["version"],
        )

    def knows(self, data_source: str) -> bool:
        """Whether there is a scorer for the data source."""
        if self._options.custom is None:
            return find_verifier(data_source) is not None
        return any(
            data_source == source or (source.endswith("*") and data_source.startswith(source[:-1]))
            for source in self._pool.traits["data_sources"]
        )

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
                put_aside=self._pool.put_aside,
            )

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return self._pool.pids

    def shutdown(self) -> None:
        """End the workers, at once. May be called again."""
        self._pool.close()
        if self._options.custom is None:
            try:
                sweep()  # killed workers can't take their sandboxes' groups away
            except (OSError, SandboxError) as error:
                _log.warning("control groups of the code sandbox are left behind: %s", error)

    async def close(self) -> None:
        """`shutdown` without blocking the event loop."""
        await asyncio.to_thread(self.shutdown)

    async def _judge(self, items: Sequence[ScoreRequest], deadline_s: float) -> list[Outcome]:
        if not items:
            return []
        size = len(items) if self._pool.traits.get("batch") else 1
        batches = [items[first : first + size] for first in range(0, len(items), size)]
        futures = self._pool.submit([self._message(batch) for batch in batches], deadline_s=deadline_s)
        waiting = [asyncio.wrap_future(future) for future in futures]
        try:
            await asyncio.wait(waiting, timeout=deadline_s)
            outcomes: list[Outcome] = []
            for batch, future in zip(batches, waiting, strict=True):
                outcomes += future.result() if future.done() else [_too_late(deadline_s)] * len(batch)
            return outcomes
        finally:
            for future in waiting:
                future.cancel()  # on our caller's cancellation too: what waits in the queue is then never run

    @property
    def _fields(self) -> set[str]:
        """What of a sample its function wants, besides what all get."""
        return set(self._pool.traits.get("fields", ())) - _ALWAYS

    def _message(self, items: Sequence[ScoreRequest]) -> dict[str, Any]:
        self._next_id += 1
        fields = self._fields
        samples = [_sample(item, fields) for item in items]
        if self._options.custom is None and self._options.scorer_kwargs:
            for item, sample in zip(items, samples, strict=True):
                sample["extra_info"] = with_defaults(self._options.scorer_kwargs, item.data_source, item.extra_info)
        if self._options.custom is None:
            for item, sample in zip(items, samples, strict=True):
                if item.response_ids:
                    sample["extra_info"] = {**sample["extra_info"], TOKEN_COUNT: len(item.response_ids)}
        return {"id": self._next_id, "samples": samples}

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


_LEAST_VERIFIER_S = 0.005
_LEAST_PROGRAM_S = 0.1
_ALWAYS = {"data_source", "response_text", "ground_truth", "extra_info"}


def _least_quota_s(data_source: str) -> float:
    """Of the fast lane: what is less is noise, of a machine or of how often a program is looked at."""
    verifier = find_verifier(data_source)
    return _LEAST_PROGRAM_S if verifier is not None and verifier.bounds_itself else _LEAST_VERIFIER_S


def _sample(item: ScoreRequest, fields: set[str]) -> dict[str, Any]:
    """What a worker gets of a sample: what all get, and `fields`."""
    known: dict[str, Any] = {
        "prompt_text": item.prompt_text,
        "messages": item.messages,
        "prompt_ids": item.prompt_ids,
        "response_ids": item.response_ids,
        "truncated": not item.valid_response,
    }
    return {
        "data_source": item.data_source,
        "response_text": item.response_text,
        "ground_truth": item.ground_truth,
        "extra_info": item.extra_info,
        **{name: known[name] for name in fields},
    }


def _unknown(data_source: str) -> Failed:
    return Failed("unknown_data_source", f"no scorer for data_source {data_source!r}; see custom_reward_function.path")


def _too_late(deadline_s: float) -> Failed:
    return Failed("timeout", f"not judged within the call's deadline of {deadline_s:.3g} s")
