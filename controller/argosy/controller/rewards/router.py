"""`RewardRouter`: the Reward role over all reward services of a run."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from argosy.config.schema import NamedRewardConfig
from argosy.controller.rewards.combine import Term, combine
from argosy.controller.rewards.figures import Figures
from argosy.controller.rewards.replicas import ReplicaSet
from argosy.controller.rewards.routes import choose, knows
from argosy.controller.rewards.statistics import Statistics
from argosy.roles.reward import Reward
from argosy.types.errors import ArgosyError, ConfigError, StateError
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Failed, Outcome, RewardCapabilities, ScoreRequest, ScoreResult

TRAINING, VALIDATION = "train", "val"


@dataclass(frozen=True, slots=True)
class RoutedService:
    """One service and what its scores count for."""

    replicas: ReplicaSet
    config: NamedRewardConfig
    scorer: str = ""
    """What scores there: a kind of `argosy.reward.kind`, or "function"; empty: a server that others run."""

    @property
    def term(self) -> Term:
        """For `combine`."""
        one = self.config
        return Term(self.replicas.name, one.weight, one.required, one.clip_min, one.clip_max, one.normalize)


class RewardRouter:
    """Implements `argosy.roles.reward.Reward`: routes, retries, combines and counts.

    Scores are normalised with the figures of the training steps before: what a sample gets depends neither on who
    answers first nor on what is validated. `commit` takes the scores of a step in.

    Args:
        services: In the configuration's order.
        error_window: Samples of a service with a limit of its own over which its failures are counted.
        following: The task that keeps the servers up to date; scoring raises if that has failed.
    """

    def __init__(
        self,
        services: Sequence[RoutedService],
        *,
        error_window: int = 64,
        following: asyncio.Task[None] | None = None,
    ) -> None:
        self._following = following
        self._services = {service.replicas.name: service for service in services}
        self._patterns: dict[str, tuple[str, ...]] = {}
        self._known: dict[str, RewardCapabilities] = {}
        self._figures = Figures({name: service.config for name, service in self._services.items()}, error_window)
        self._statistics = {TRAINING: Statistics(), VALIDATION: Statistics()}

    @property
    def services(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self._services)

    def servers(self, service: str) -> tuple[str, ...]:
        """Who judges for a service now: member ids, or addresses."""
        found = self._services.get(service)
        return () if found is None else found.replicas.keys

    async def start(self) -> None:
        """Ask every service what it can do. Raises ConfigError that names each that can't be asked."""
        names = list(self._services)
        asked = await asyncio.gather(*(self._ask(name) for name in names))
        problems = [answer for answer in asked if isinstance(answer, str)]
        if problems:
            raise ConfigError("\n".join(problems))
        for name, answer in zip(names, asked, strict=True):
            if isinstance(answer, RewardCapabilities):
                self._known[name] = answer
                self._patterns[name] = self._services[name].config.data_sources or answer.data_sources

    async def _ask(self, name: str) -> RewardCapabilities | str:
        try:
            return await self._services[name].replicas.capabilities()
        except ArgosyError as error:
            return f"argosy.reward.services.{name}: it doesn't say what it can do: {error.message}"

    def check_sources(self, sources: Collection[str]) -> None:
        """Every data source must have a service that knows it. Raises ConfigError with all that have none."""
        unknown = [source for source in sorted(sources) if not choose(self._patterns, source)]
        problems = [self._nobody_knows(unknown)] if unknown else []
        for source in sorted(sources):
            for name in choose(self._patterns, source):
                told = self._known[name].data_sources
                if not knows(told, source):
                    problems.append(
                        f"argosy.reward.services.{name}.data_sources gives it {source!r}, which it doesn't know; it "
                        f"knows: {', '.join(told)}"
                    )
        if problems:
            raise ConfigError("\n".join(problems))

    def judges(self, source: str) -> list[tuple[RoutedService, RewardCapabilities]]:
        """The services that score a data source, and what they say of themselves."""
        return [(self._services[name], self._known[name]) for name in choose(self._patterns, source)]

    def _nobody_knows(self, unknown: Sequence[str]) -> str:
        if len(self._services) == 1:
            (told,) = self._patterns.values()
            known, way_out = ", ".join(told), "Set custom_reward_function.path=… to a file with compute_score(…)"
        else:
            known = "; ".join(f"{name}: {', '.join(told)}" for name, told in self._patterns.items())
            way_out = "Give it to one of argosy.reward.services"
        return (
            f"no scorer knows the data source{'s' if len(unknown) > 1 else ''} {', '.join(map(repr, unknown))}; known: "
            f"{known}. {way_out}, or correct the data_source column"
        )

    async def capabilities(self) -> RewardCapabilities:
        """Of all services together."""
        known = self._known.values()
        return RewardCapabilities(
            data_sources=tuple(dict.fromkeys(pattern for own in self._patterns.values() for pattern in own)),
            needs_token_ids=any(one.needs_token_ids for one in known),
            needs_messages=any(one.needs_messages for one in known),
            repeat_forbidden=any(one.repeat_forbidden for one in known),
            name="router",
        )

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        """One result per item; samples of one prompt should come in one call.

        Nothing but a defect raises, and StateError when the servers are no longer followed.
        """
        return await self._score(items, deadline_s, self._statistics[TRAINING])

    def validation(self) -> Reward:
        """The same services, counted apart, and without a trace in what training normalises with."""
        return _View(self, lambda items, deadline_s: self._score(items, deadline_s, self._statistics[VALIDATION]))

    async def _score(
        self, items: Sequence[ScoreRequest], deadline_s: float, statistics: Statistics
    ) -> list[ScoreResult]:
        self._check_following()
        groups: dict[tuple[GroupId, str], list[ScoreRequest]] = defaultdict(list)
        for item in items:
            groups[item.sample_id.group, item.data_source].append(item)
        outcomes: dict[SampleId, Outcome] = {}
        async with asyncio.TaskGroup() as tasks:
            scoring = [tasks.create_task(self._group(group, deadline_s, statistics)) for group in groups.values()]
        for one in scoring:
            outcomes |= one.result()
        return [ScoreResult(item.sample_id, outcomes[item.sample_id]) for item in items]

    def _check_following(self) -> None:
        """Raises StateError if nobody learns any more which servers there are."""
        task = self._following
        error = task.exception() if task is not None and task.done() and not task.cancelled() else None
        if error is not None:
            raise StateError(f"the reward servers are no longer followed: {type(error).__name__}: {error}") from error

    async def _group(
        self, items: Sequence[ScoreRequest], deadline_s: float, statistics: Statistics
    ) -> dict[SampleId, Outcome]:
        source = items[0].data_source
        names = choose(self._patterns, source)
        if not names:
            unknown = Failed("unknown_data_source", self._nobody_knows([source]))
            outcomes: dict[SampleId, Outcome] = dict.fromkeys([item.sample_id for item in items], unknown)
        else:
            async with asyncio.TaskGroup() as tasks:
                asked = {name: tasks.create_task(self._one(name, items, deadline_s, statistics)) for name in names}
            given = {name: task.result() for name, task in asked.items()}
            terms, figures = [self._services[name].term for name in names], self._figures
            outcomes = combine(terms, given, figures.moments, figures.usual(names, source))
        statistics.add_source(source, outcomes)
        return outcomes

    async def _one(
        self, name: str, items: Sequence[ScoreRequest], deadline_s: float, statistics: Statistics
    ) -> dict[SampleId, Outcome]:
        replicas = self._services[name].replicas
        outcomes = await replicas.score(items, deadline_s=deadline_s, stats=statistics.calls_of(name))
        statistics.add_service(name, items[0].data_source, outcomes)
        return outcomes

    # -- between steps -----------------------------------------------------------------------------------------------

    def commit(self) -> dict[str, float]:
        """End a training step: its scores count for what later ones are normalised with. Returns its metrics.

        Raises RewardsUnusableError when a service has failed more often than its own limit allows.
        """
        statistics, self._statistics[TRAINING] = self._statistics[TRAINING], Statistics()
        self._figures.take(statistics)
        metrics = statistics.metrics()
        for name, service in self._services.items():
            metrics[f"reward_service/{name}/replicas"] = float(len(service.replicas.keys))
        return metrics

    def drain_validation(self) -> dict[str, float]:
        """Metrics of a validation pass, which ends here."""
        statistics, self._statistics[VALIDATION] = self._statistics[VALIDATION], Statistics()
        self._figures.warn(statistics)
        return statistics.metrics()

    def state(self) -> dict[str, Any]:
        """For a checkpoint, after `commit`."""
        return self._figures.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave; a service that wasn't there begins anew."""
        self._figures.restore(state)


class _View:
    """A router's services under another account."""

    def __init__(self, router: RewardRouter, score: Callable[[Sequence[ScoreRequest], float], Any]) -> None:
        self._router = router
        self._score = score

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        results: list[ScoreResult] = await self._score(items, deadline_s)
        return results

    async def capabilities(self) -> RewardCapabilities:
        return await self._router.capabilities()
