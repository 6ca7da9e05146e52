"""One sample's life, as the ledger keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from argosy.types.ids import SampleId
from argosy.types.records import Abstained, Completion, Scored, ScoreResult

DRAWN, DISPATCHED, COMPLETED, SCORED = "drawn", "dispatched", "completed", "scored"
TRAINED, BASELINE, DROPPED = "trained", "baseline", "dropped"
OPEN_STATES = (DRAWN, DISPATCHED, COMPLETED, SCORED)
FINAL_STATES = (TRAINED, BASELINE, DROPPED)


@dataclass(slots=True)
class Entry:
    """What has become of one sample so far. Times are Unix seconds; None means that it has not happened."""

    sample: SampleId
    prompt_index: int
    """Row of the dataset."""
    state: str = DRAWN
    member: str | None = None
    """The rollout server that it was sent to last."""
    dispatch_count: int = 0
    """How often it was sent to a server: more than once after a server's loss, and once for each turn of an agent."""
    token_count: int | None = None
    finish_reason: str | None = None
    first_version: str | None = None
    """Weights of its first token, `lineage@step#digest`: the oldest, which its staleness is counted from."""
    last_version: str | None = None
    outcome: str | None = None
    """"scored", "abstained" or "failed"."""
    score: float | None = None
    verdict: str | None = None
    """Why it could not be judged."""
    trained_step: int | None = None
    reason: str | None = None
    """Why it was dropped."""
    drawn_at: float | None = None
    dispatched_at: float | None = None
    """The last dispatch."""
    completed_at: float | None = None
    scored_at: float | None = None
    ended_at: float | None = None
    """When it was trained, dropped, or used as a baseline."""

    def take_completion(self, completion: Completion) -> None:
        """What the whole answer tells."""
        versions = completion.versions
        self.token_count = len(completion.token_ids)
        self.finish_reason = completion.finish_reason.value
        self.first_version = versions[0].version.short if versions else None
        self.last_version = versions[-1].version.short if versions else None
        self.member = self.member or completion.member_id or None

    def take_outcome(self, result: ScoreResult) -> None:
        """What the judge said."""
        match result.outcome:
            case Scored(score=score):
                self.outcome, self.score, self.verdict = "scored", float(score), None
            case Abstained(reason=reason):
                self.outcome, self.score, self.verdict = "abstained", None, reason
            case failed:
                self.outcome, self.score, self.verdict = "failed", None, f"{failed.reason}: {failed.message}"

    def row(self) -> dict[str, Any]:
        """For JSON."""
        return dict(zip(COLUMNS, self.values(), strict=True))

    def values(self) -> tuple[Any, ...]:
        """For SQLite, by COLUMNS. Taken whenever something happens to a sample, so it must be cheap."""
        return (str(self.sample), *_VALUES(self))

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Entry:
        """What `row` gave. Raises ValueError or KeyError on a damaged one; columns that it doesn't know are ignored."""
        return cls(SampleId.parse(row["sample_id"]), **{name: row[name] for name in _NAMES if name in row})


_NAMES = tuple(field.name for field in fields(Entry) if field.name != "sample")
_VALUES = attrgetter(*_NAMES)
_ORDER = attrgetter("sample.data_epoch", "sample.position", "sample.k", "sample.attempt")
COLUMNS = ("sample_id", *_NAMES)


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """By sample id. See SAMPLE_ORDER."""
    return sorted(entries, key=_ORDER)


def staleness_of(row: Mapping[str, Any]) -> int | None:
    """Steps between the weights that a trained sample's first token came from and those that its step began with; None
    for one that was not trained or has no token.

    >>> staleness_of({"trained_step": 7, "first_version": "l0@4#9f86d081"})
    2
    """
    step, version = row["trained_step"], row["first_version"]
    return None if step is None or not version else int(step) - 1 - version_step(version)


def version_step(short: str) -> int:
    """The training step in `lineage@step#digest`."""
    return int(short.rpartition("@")[2].partition("#")[0])
