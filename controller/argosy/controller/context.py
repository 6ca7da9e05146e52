"""What all stages share: the configuration, the services, the books, and how mutations are named."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from argosy.config import Config
from argosy.controller.ledger import Ledger
from argosy.controller.rewards.router import RewardRouter
from argosy.controller.roster import Roster
from argosy.controller.vitals import Vitals
from argosy.membership.interface import Membership
from argosy.roles.policy import Critic, Policy
from argosy.roles.reference import Reference
from argosy.roles.reward import Reward
from argosy.roles.rollout import Rollout
from argosy.types.records import Mutation, request_id_of


@dataclass(frozen=True, slots=True)
class Services:
    """The roles that the loop calls; it doesn't know whether they are cores in this process or clients."""

    rollouts: Mapping[str, Rollout]
    """By member id. A live view where servers come and go: ask for one at the moment of its use; one that has left is
    an UnavailableError."""
    reward: Reward
    """All reward services of the run as one: a `RewardRouter`, except in small tests."""
    policy: Policy
    reference: Reference | None
    """None when neither use_kl_loss nor use_kl_in_reward asks for it."""
    critic: Critic | None = None
    """None unless the advantage estimator reads values."""
    pools: Mapping[str, str] = field(default_factory=dict)
    """Rollout member id → its pool; one that isn't there is of the pool "default"."""
    lost: Set[str] = frozenset()
    """Rollout members that are gone for good: a live view, since they die while the run goes on. One that is born again
    under its id isn't lost any more."""
    roster: Roster[Any] | None = None
    """Tells of rollout servers that come and go; None where they are the same from the start to the end."""

    @property
    def has_rollouts(self) -> bool:
        """Whether anything samples in this run, even if no server is there at the moment."""
        return self.roster is not None or bool(self.rollouts)

    @property
    def takes_joiners(self) -> bool:
        """Whether another rollout server may come."""
        return self.roster is not None and not self.roster.fixed

    @property
    def router(self) -> RewardRouter | None:
        """The rewards, where they are a router."""
        return self.reward if isinstance(self.reward, RewardRouter) else None


@dataclass(slots=True)
class RunContext:
    """One run under one leader."""

    config: Config
    run_id: str
    term: int
    services: Services
    ledger: Ledger
    membership: Membership
    lineage: str = "l0"
    """Line of descent of the weights; a resume that abandons finished steps starts the next one."""
    counters: dict[str, float] = field(default_factory=dict)
    """Things counted over the whole run (re-dispatched samples, failed verdicts …)."""

    vitals: Vitals = field(default_factory=Vitals)
    """What is seen of members."""
    measured: dict[str, float] = field(default_factory=dict)
    """Figures of the last sync, which go into the metrics of the step that they belong to."""

    @property
    def deadline_s(self) -> float:
        """Total seconds for one call, all tries included."""
        return self.config.argosy.rpc.deadline_s

    def trainer_step(self, name: str, step: int) -> int:
        """Where the trainer of a checkpoint's folder ("actor", "critic") is after step `step` of the run.

        The policy isn't updated in the first `trainer.critic_warmup` steps; its schedule begins after them.
        """
        return step if name == "critic" else max(0, step - self.config.trainer.critic_warmup)

    def mutation(self, *parts: object, expected_step: int | None = None) -> Mutation:
        """A mutation whose request id follows from what it does, so that a repeat after a crash is recognised."""
        return Mutation(
            run_id=self.run_id,
            term=self.term,
            request_id=request_id_of(self.run_id, self.lineage, *parts),
            deadline_s=self.deadline_s,
            expected_step=expected_step,
        )

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter of the run."""
        self.counters[name] = self.counters.get(name, 0) + amount
