"""Metrics of rewards: per data source what training sees, per service what it said and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from argosy.controller.rewards.calls import CallStats
from argosy.types.ids import SampleId
from argosy.types.records import Abstained, Failed, Outcome, Scored


@dataclass(slots=True)
class Tally:
    """Outcomes of some samples."""

    scores: dict[SampleId, float] = field(default_factory=dict)
    failures: list[Failed] = field(default_factory=list)
    abstained: int = 0

    @property
    def total(self) -> int:
        """All samples."""
        return len(self.scores) + len(self.failures) + self.abstained

    def add(self, sample: SampleId, outcome: Outcome) -> None:
        """Count one."""
        if isinstance(outcome, Scored):
            self.scores[sample] = outcome.score
        elif isinstance(outcome, Failed):
            self.failures.append(outcome)
        else:
            self.abstained += isinstance(outcome, Abstained)

    def outcomes(self) -> list[Outcome]:
        """All of them, without their parts, the failed ones first."""
        return [*self.failures, *map(Scored, self.scores.values()), *[Abstained()] * self.abstained]

    def in_order(self) -> list[float]:
        """The scores by sample: the same in every run, whatever came back first."""
        return [score for _, score in sorted(self.scores.items())]

    def metrics(self, name: str) -> dict[str, float]:
        """name/{mean,std,failed,abstained}; no mean of no scores, rather than a made-up 0 (case H9)."""
        metrics = {f"{name}/failed": float(len(self.failures)), f"{name}/abstained": float(self.abstained)}
        if self.scores:
            scores = np.array(self.in_order(), np.float64)
            metrics |= {f"{name}/mean": float(scores.mean()), f"{name}/std": float(scores.std())}
        return metrics


@dataclass(slots=True)
class Statistics:
    """Of everything that was scored since the last `drain`."""

    sources: dict[str, Tally] = field(default_factory=dict)
    services: dict[str, Tally] = field(default_factory=dict)
    """Scores as the services gave them: not normalised, clipped or weighted."""
    pairs: dict[tuple[str, str], Tally] = field(default_factory=dict)
    """The same by (service, data source)."""
    calls: dict[str, CallStats] = field(default_factory=dict)

    def add_service(self, service: str, source: str, outcomes: Mapping[SampleId, Outcome]) -> None:
        """What one service said of samples of one data source."""
        for tally in (
            self.services.setdefault(service, Tally()),
            self.pairs.setdefault((service, source), Tally()),
        ):
            for sample, outcome in outcomes.items():
                tally.add(sample, outcome)

    def add_source(self, source: str, outcomes: Mapping[SampleId, Outcome]) -> None:
        """What was made of it."""
        tally = self.sources.setdefault(source, Tally())
        for sample, outcome in outcomes.items():
            tally.add(sample, outcome)

    def calls_of(self, service: str) -> CallStats:
        """To add a call to."""
        return self.calls.setdefault(service, CallStats())

    def metrics(self) -> dict[str, float]:
        """`reward/{source}/…` and `reward_service/{service}/…`."""
        metrics: dict[str, float] = {}
        for source, tally in sorted(self.sources.items()):
            metrics |= tally.metrics(f"reward/{source}")
        for service, tally in sorted(self.services.items()):
            metrics |= tally.metrics(f"reward_service/{service}")
            metrics[f"reward_service/{service}/failed_fraction"] = len(tally.failures) / max(tally.total, 1)
        for service, calls in sorted(self.calls.items()):
            name = f"reward_service/{service}"
            metrics[f"{name}/latency_s"] = calls.seconds / calls.calls if calls.calls else 0.0
            metrics[f"{name}/calls"] = float(calls.calls)
            metrics[f"{name}/retries"] = float(calls.retried_calls + calls.retried_samples)
        return metrics
