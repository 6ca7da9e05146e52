"""Figures over a whole ledger: what became of the samples, how old they were, who answered, why some were dropped."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from argosy.controller.ledger.entry import FINAL_STATES, TRAINED, staleness_of
from argosy.controller.ledger.live import read_live
from argosy.controller.ledger.segments import load_segment, steps_in
from argosy.types.ids import SampleId

SPANS = {
    "from drawn to dispatched": ("drawn_at", "dispatched_at"),
    "from dispatched to completed": ("dispatched_at", "completed_at"),
    "from completed to scored": ("completed_at", "scored_at"),
    "from scored to trained": ("scored_at", "ended_at"),
    "from drawn to trained": ("drawn_at", "ended_at"),
}
"""Of trained samples, in seconds."""
PERCENTILES = (50, 90, 99, 100)
MAX_NAMES = 1000
"""Different reasons, and servers, that are counted by themselves; further ones are counted together as `OTHERS`."""
OTHERS = "(others)"


@dataclass(slots=True)
class Summary:
    """Counts and durations of all samples of the surviving lineage."""

    steps: list[int] = field(default_factory=list)
    """First and last committed step; [] before the first."""
    states: Counter[str] = field(default_factory=Counter)
    """Finished samples."""
    live: Counter[str] = field(default_factory=Counter)
    """Samples that are in no segment yet: in flight, or finished since the last commit."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Of dropped samples."""
    servers: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    """By server."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Of trained samples."""
    redispatched: int = 0
    """Samples that were sent out more than once: a server was lost, or an agent took several turns."""
    mixed: int = 0
    """Samples with tokens of several weights."""
    spans: dict[str, array[float]] = field(default_factory=lambda: {name: array("f") for name in SPANS})

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one finished sample."""
        self.states[row["state"]] += 1
        server = _bounded(self.servers, row["member"] or "(nobody)")
        self.servers[server] += 1
        self.tokens[server] += row["token_count"] or 0
        self.redispatched += row["dispatch_count"] > 1
        self.mixed += row["first_version"] != row["last_version"]
        if row["reason"] is not None:
            self.reasons[_bounded(self.reasons, row["reason"])] += 1
        if row["state"] == TRAINED:
            if (staleness := staleness_of(row)) is not None:
                self.staleness[staleness] += 1
            for name, (start, end) in SPANS.items():
                if row[start] is not None and row[end] is not None:
                    self.spans[name].append(max(0.0, row[end] - row[start]))

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "first_step": self.steps[0] if self.steps else None,
            "last_step": self.steps[-1] if self.steps else None,
            "finished": dict(self.states),
            "not_in_a_segment_yet": dict(self.live),
            "drop_reasons": dict(self.reasons.most_common()),
            "servers": {
                name: {"samples": count, "tokens": self.tokens[name]} for name, count in sorted(self.servers.items())
            },
            "staleness": {str(steps): count for steps, count in sorted(self.staleness.items())},
            "redispatched": self.redispatched,
            "several_versions": self.mixed,
            "seconds": {name: percentiles(values) for name, values in self.spans.items() if len(values)},
        }


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """{"p50": …, "p90": …, "p99": …, "max": …} in seconds."""
    found = np.percentile(np.asarray(values, np.float32), PERCENTILES)
    return {
        "max" if rank == 100 else f"p{rank}": round(float(value), 3)
        for rank, value in zip(PERCENTILES, found, strict=True)
    }


def summarise(run_dir: Path, on_step: Callable[[int], None] = lambda step: None) -> Summary:
    """Read the whole ledger of a run, which may be under way. Raises CorruptDataError for a damaged segment."""
    folder, summary = run_dir / "ledger", Summary()
    live = read_live(folder)  # before the segments: what is committed meanwhile is then in both, and not in none
    steps = steps_in(folder)
    summary.steps = steps
    closed = None
    for step in steps:
        segment = load_segment(folder, step)
        for row in segment.rows:
            summary.add(row)
        closed = segment.closed
        on_step(step)
    for row in live:
        if closed is None or SampleId.parse(row["sample_id"]) not in closed:
            summary.live[row["state"] if row["state"] not in FINAL_STATES else f"{row['state']} since"] += 1
    return summary


def _bounded(counts: Mapping[str, int], name: str) -> str:
    return name if name in counts or len(counts) < MAX_NAMES else OTHERS
