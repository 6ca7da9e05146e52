"""When too many samples can't be judged, the run ends with the cause (case G11): the rest would be a biased choice."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from argosy.types.errors import ArgosyError
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Outcome


class RewardsUnusableError(ArgosyError):
    """Too many samples could not be judged: training on the rest would be training on noise (case G11)."""


def check_failures(outcomes: Mapping[SampleId, Outcome], max_error_rate: float) -> dict[str, float]:
    """Metrics of verifier failures. Raises RewardsUnusableError when more than `max_error_rate` of a batch failed."""
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, Failed)]
    rate = len(failures) / max(len(outcomes), 1)
    if failures and rate > max_error_rate:
        raise _unusable(f"{len(failures)} of {len(outcomes)} samples", failures, max_error_rate)
    metrics = {"reward/failed_fraction": rate}
    for reason, count in Counter(failure.reason for failure in failures).items():
        metrics[f"reward/failed/{reason}"] = float(count)
    return metrics


class FailureWindow:
    """Failures of each data source, or of a service, over its last samples, from batch to batch.

    A batch in which half of all samples fail is noticed by itself. A data source that is a tenth of each batch never
    is, though every one of its samples may fail: it would just no longer be trained.

    Args:
        max_error_rate: Share of the window that may fail; 1 never ends the run.
        size: Samples of one source that must have been seen before its share is looked at.
        what: What the sources are, for the message.
        key: Of the configuration, whose limit it is.
    """

    def __init__(
        self, max_error_rate: float, size: int, *, what: str = "data source", key: str = "argosy.reward.max_error_rate"
    ) -> None:
        self._max_error_rate = max_error_rate
        self._size = size
        self._what = what
        self._key = key
        self._batches: dict[str, deque[tuple[int, int]]] = {}
        """Source → (failed, all) of the newest batches: as many as make up the window, whole batches."""

    def add(self, outcomes: Iterable[tuple[str, Outcome]]) -> None:
        """Count one batch of (data source, outcome). Raises RewardsUnusableError."""
        by_source: dict[str, list[Outcome]] = {}
        for source, outcome in outcomes:
            by_source.setdefault(source, []).append(outcome)
        for source, found in sorted(by_source.items()):
            failures = [outcome for outcome in found if isinstance(outcome, Failed)]
            batches = self._batches.setdefault(source, deque())
            batches.append((len(failures), len(found)))
            self._forget(batches)
            failed, total = (sum(column) for column in zip(*batches, strict=True))
            if failures and total >= self._size and failed / total > self._max_error_rate:
                what = f"{self._what} {source!r}: {failed} of its last {total} samples"
                raise _unusable(what, failures, self._max_error_rate, self._key)

    def _forget(self, batches: deque[tuple[int, int]]) -> None:
        total = sum(count for _, count in batches)
        while total - batches[0][1] >= self._size:
            total -= batches.popleft()[1]

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {source: [list(batch) for batch in batches] for source, batches in self._batches.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._batches = {
            source: deque((int(failed), int(total)) for failed, total in batches) for source, batches in state.items()
        }


def _unusable(
    what: str, failures: Sequence[Failed], max_error_rate: float, key: str = "argosy.reward.max_error_rate"
) -> RewardsUnusableError:
    return RewardsUnusableError(f"{what} could not be judged ({key}={max_error_rate:g}); {most_frequent(failures)}")


def most_frequent(failures: Sequence[Failed]) -> str:
    """The most frequent reason of some failures, how often, and an example.

    >>> most_frequent([Failed("timeout", "slow"), Failed("exception", "boom"), Failed("timeout", "slow")])
    "2 times 'timeout', for example: slow"
    """
    (reason, count), *_ = Counter(failure.reason for failure in failures).most_common(1)
    example = next(failure.message for failure in failures if failure.reason == reason)
    return f"{count} times {reason!r}, for example: {example}"
