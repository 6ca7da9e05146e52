"""Running figures of the services, from training step to training step; part of the checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from argosy.config.schema import NamedRewardConfig
from argosy.controller.rewards.failures import FailureWindow, most_frequent
from argosy.controller.rewards.moments import Moments
from argosy.controller.rewards.statistics import Statistics

log = logging.getLogger(__name__)

_SHOWN = 500


class Figures:
    """Mean and spread of each service's scores, its mean for each data source, and how often it failed lately.

    Args:
        services: By name.
        error_window: Samples of a service with a limit of its own over which its failures are counted.
    """

    def __init__(self, services: Mapping[str, NamedRewardConfig], error_window: int) -> None:
        self._services = services
        self.moments = {name: Moments() for name in services}
        """Of all that a service has scored: what its scores are normalised by."""
        self._by_source: dict[tuple[str, str], Moments] = {}
        self._windows = {
            name: FailureWindow(
                service.max_error_rate,
                error_window,
                what="reward service",
                key=f"argosy.reward.services.{name}.max_error_rate",
            )
            for name, service in services.items()
            if service.max_error_rate is not None
        }

    def usual(self, names: Sequence[str], source: str) -> dict[str, float]:
        """Mean score of services for one data source; without those that have not scored it yet."""
        known = {name: self._by_source.get((name, source), Moments()) for name in names}
        return {name: moments.mean for name, moments in known.items() if moments.count}

    def take(self, statistics: Statistics) -> None:
        """Count a training step. Raises RewardsUnusableError when a service failed more often than it may."""
        for name, tally in statistics.services.items():
            self.moments[name] = self.moments[name].with_scores(tally.in_order())
        for pair, tally in statistics.pairs.items():
            self._by_source[pair] = self._by_source.get(pair, Moments()).with_scores(tally.in_order())
        self.warn(statistics)
        for name, window in self._windows.items():
            if name in statistics.services:
                window.add((name, outcome) for outcome in statistics.services[name].outcomes())

    def warn(self, statistics: Statistics) -> None:
        """Of an optional service nothing else would tell that it fails: its samples are judged without it."""
        for name, tally in sorted(statistics.services.items()):
            if tally.failures:
                log.warning(
                    "reward service %s failed for %d of %d samples%s; %s", name, len(tally.failures), tally.total,
                    "" if self._services[name].required else ", which count without it",
                    most_frequent(tally.failures)[:_SHOWN],
                )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            name: {
                **moments.state(),
                "sources": {source: own.state() for (one, source), own in self._by_source.items() if one == name},
                "failures": self._windows[name].state() if name in self._windows else {},
            }
            for name, moments in self.moments.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave; a service that wasn't there begins anew."""
        for name, one in state.items():
            if name not in self._services:
                continue
            self.moments[name] = Moments.of_state(one)
            for source, own in one.get("sources", {}).items():
                self._by_source[name, source] = Moments.of_state(own)
            if name in self._windows:
                self._windows[name].restore(one.get("failures", {}))
