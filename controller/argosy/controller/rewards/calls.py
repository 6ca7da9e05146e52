"""One call of one reward server, and what its failure means for its samples."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from argosy.roles.reward import Reward
from argosy.types.errors import (
    ArgosyError,
    DeadlineError,
    InvalidInputError,
    MessageTooLargeError,
    OverloadedError,
    StateError,
    UnavailableError,
)
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Outcome, ScoreRequest

PERMANENT = frozenset({"unknown_data_source", "bad_ground_truth", "too_large", "refused"})
"""Reasons of failures that a repeat can't mend. All others are worth another try, unknown ones too: a service in
another language has reasons of its own."""


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
    """Outcomes of a batch. Raises what the server or the way to it raises, DeadlineError after `timeout_s`."""
    replica.in_flight += len(batch)
    started = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            results = await replica.reward.score(batch, deadline_s=timeout_s)
    except TimeoutError as error:
        raise DeadlineError(f"{replica.key}: no answer within {timeout_s:.3g} s") from error
    finally:
        replica.in_flight -= len(batch)
        stats.calls += 1
        stats.seconds += time.monotonic() - started
    replica.rests_until = 0.0
    outcomes = {result.sample_id: result.outcome for result in results}
    missing = Failed("bad_return", f"{replica.key} gave no result for this sample")
    return {item.sample_id: _fitting(item, outcomes.get(item.sample_id, missing), replica.key) for item in batch}


def _fitting(item: ScoreRequest, outcome: Outcome, key: str) -> Outcome:
    """The outcome, unless it scores another number of tokens than the response has (case G2)."""
    given, wanted = len(getattr(outcome, "token_scores", ())), len(item.response_ids)
    if given and wanted and given != wanted:
        return Failed("bad_return", f"{key} gave {given} token scores for a response of {wanted} tokens")
    return outcome


def is_worth_repeating(outcome: Outcome) -> bool:
    """Whether a sample may come out better another time."""
    return isinstance(outcome, Failed) and outcome.reason not in PERMANENT


def reason_of(outcome: Outcome) -> str:
    """Of a failure; "" of any other outcome."""
    return outcome.reason if isinstance(outcome, Failed) else ""


def is_worth_another_server(error: ArgosyError) -> bool:
    """Whether the call failed for a reason that another server need not have."""
    return isinstance(error, UnavailableError | OverloadedError | DeadlineError | StateError)


def failed(error: ArgosyError) -> Failed:
    """A call's failure as the outcome of its samples."""
    reasons: tuple[tuple[type[ArgosyError], str], ...] = (
        (MessageTooLargeError, "too_large"),
        (InvalidInputError, "refused"),
        (OverloadedError, "overloaded"),
        (DeadlineError, "timeout"),
        (UnavailableError, "unavailable"),
        (StateError, "unavailable"),
    )
    reason = next((reason for kind, reason in reasons if isinstance(error, kind)), "service_error")
    return Failed(reason, error.message)
