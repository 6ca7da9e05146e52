"""One call of one reward server, and what its failure means for its samples."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from argosy.roles.reward import Reward
from argosy.rpc.errors import as_argosy_error
from argosy.types.errors import (
    ArgosyError,
    DeadlineError,
    OverloadedError,
    StateError,
    UnavailableError,
)
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Outcome, ScoreRequest, ScoreResult

log = logging.getLogger(__name__)

PERMANENT = frozenset({
    "unknown_data_source", "bad_ground_truth", "bad_options", "bad_request", "too_large", "refused", "masked",
    "language_unavailable", "sandbox_unavailable", "not_installed",
})  # fmt: skip
"""Reasons of failures that a repeat can't mend. All others are worth another try, unknown ones too: a service in
another language has reasons of its own."""

_NOBODYS_FAULT = frozenset({"unavailable", "overloaded", "rate_limited"})
"""Reasons that lie in the server or the way to it, not in any one sample."""


@dataclass(slots=True, eq=False)
class Replica:
    """One server."""

    key: str
    """Its member id or address."""
    reward: Reward
    in_flight: int = 0
    """Samples that it is judging."""
    rests_until: float = 0.0
    """On time.monotonic's clock."""
    checked: bool = False
    """It has said that it scores as its siblings do, in this life of it."""


@dataclass(slots=True)
class CallStats:
    """What scoring cost; added up by whoever asks."""

    calls: int = 0
    seconds: float = 0.0
    """Of all calls together."""
    retried_calls: int = 0
    retried_samples: int = 0


async def call(
    replica: Replica, batch: Sequence[ScoreRequest], timeout_s: float, stats: CallStats
) -> dict[SampleId, Outcome]:
    """Outcomes of a batch. Raises ArgosyError: what the server or the way to it raises, DeadlineError after
    `timeout_s`, InternalError for a defect of a scorer in this process."""
    replica.in_flight += len(batch)
    started = time.monotonic()
    try:
        results = await _score(replica, batch, timeout_s)
    finally:
        replica.in_flight -= len(batch)
        stats.calls += 1
        stats.seconds += time.monotonic() - started
    replica.rests_until = 0.0
    outcomes = {result.sample_id: result.outcome for result in results}
    missing = Failed("bad_return", f"{replica.key} gave no result for this sample")
    return {item.sample_id: _fitting(item, outcomes.get(item.sample_id, missing), replica.key) for item in batch}


async def _score(replica: Replica, batch: Sequence[ScoreRequest], timeout_s: float) -> Sequence[ScoreResult]:
    try:
        async with asyncio.timeout(timeout_s):
            return await replica.reward.score(batch, deadline_s=timeout_s)
    except TimeoutError as error:
        raise DeadlineError(f"{replica.key}: no answer within {timeout_s:.3g} s") from error
    except ArgosyError:
        raise
    except Exception as error:  # a scorer in this process has no server around it that would catch its defects
        log.exception("%s failed", replica.key)
        raise as_argosy_error(error) from error


def _fitting(item: ScoreRequest, outcome: Outcome, key: str) -> Outcome:
    """The outcome, unless it scores another number of tokens than the response has (case G2)."""
    given, wanted = len(getattr(outcome, "token_scores", ())), len(item.response_ids)
    if given and wanted and given != wanted:
        return Failed("bad_return", f"{key} gave {given} token scores for a response of {wanted} tokens")
    return outcome


def is_worth_repeating(outcome: Outcome) -> bool:
    """Whether a sample may come out better another time."""
    return isinstance(outcome, Failed) and outcome.reason not in PERMANENT


def suspects_of(outcomes: Mapping[SampleId, Outcome]) -> set[SampleId]:
    """Samples of one call of which several failed alike, so that one of them may be at fault for all.

    So fails a function that takes a batch, and raises or hangs because of one answer; and a server that refuses a
    request for one of its samples. Both say the same of each sample.
    """
    counts = Counter(one for one in outcomes.values() if isinstance(one, Failed) and one.reason not in _NOBODYS_FAULT)
    return {sample for sample, one in outcomes.items() if isinstance(one, Failed) and counts[one] > 1}


def reason_of(outcome: Outcome) -> str:
    """Of a failure; "" of any other outcome."""
    return outcome.reason if isinstance(outcome, Failed) else ""


def is_worth_another_server(error: ArgosyError) -> bool:
    """Whether the call failed for a reason that another server need not have."""
    return isinstance(error, UnavailableError | OverloadedError | DeadlineError | StateError)
