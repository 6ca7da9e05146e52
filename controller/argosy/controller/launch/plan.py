"""Which processes a run consists of, before any is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from argosy.config import Config
from argosy.config.schema import DEFAULT_POOL

_MODULES: Mapping[str, str] = {"critic": "argosy.trainer.critic"}
"""Of roles that aren't served by `argosy.<role>`: a critic is a trainer with a value head."""


@dataclass(frozen=True, slots=True)
class PlannedMember:
    """One service process that the launcher is to start."""

    member_id: str
    role: str
    pool: str = DEFAULT_POOL
    """Of a rollout server; of a reward server, the name of its service."""
    engine: str = ""
    """Of a rollout server."""
    python: str | None = None
    """Its interpreter; None: the launcher's own."""
    python_key: str = ""
    """The key that names the interpreter, for messages."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the launcher's environment. May hold secrets: not for logs."""


def module_of(role: str) -> str:
    """The program that serves a role, as `python -m` takes it."""
    return _MODULES.get(role, f"argosy.{role}")


def services_of(cfg: Config) -> dict[str, int]:
    """How many servers of each role this configuration has on this machine.

    A reference only where a KL term reads it, a critic only where the advantages read its values. A replay has neither
    rollout nor reward servers, and rollouts alone have nothing that trains.
    """
    rewards = sum(one.count for one in cfg.rewards.values() if not one.remote and not one.address)
    rollouts = sum(pool.count for pool in cfg.pools.values() if not pool.remote)
    if cfg.argosy.rollout_only:
        return {"reward": rewards, "rollout": rollouts}
    counts = {"trainer": 1}
    if cfg.argosy.replay.path is None:
        counts |= {"reward": rewards, "rollout": rollouts}
    if cfg.needs_reference:
        counts["reference"] = 1
    if cfg.needs_critic:
        counts["critic"] = 1
    return counts


def remote_counts(cfg: Config) -> dict[tuple[str, str], int]:
    """(role, pool or reward service) → how many of its servers the run waits for, since others start them."""
    if cfg.argosy.replay.path is not None:
        return {}
    pools = {("rollout", name): pool.count for name, pool in cfg.pools.items() if pool.remote}
    return pools | {("reward", name): service.count for name, service in cfg.rewards.items() if service.remote}


def plan_members(cfg: Config, counts: Mapping[str, int]) -> list[PlannedMember]:
    """The processes of `counts`, in the order of their start. Rollout servers go by pool where there are several, and
    reward servers by service.

    >>> [member.member_id for member in plan_members(Config(), {"trainer": 1, "rollout": 2})]
    ['trainer-0', 'rollout-0', 'rollout-1']
    """
    planned: list[PlannedMember] = []
    for role, count in counts.items():
        if role == "rollout" and cfg.argosy.pools:
            pools = {name: pool.count for name, pool in cfg.pools.items() if not pool.remote}
        elif role == "reward" and cfg.argosy.reward.services:
            pools = {name: one.count for name, one in cfg.rewards.items() if not one.remote and not one.address}
        else:
            pools = {DEFAULT_POOL: count}
        planned += [plan_member(cfg, role, pool, number) for pool, many in pools.items() for number in range(many)]
    return planned


def plan_member(cfg: Config, role: str, pool: str, number: int) -> PlannedMember:
    """One server: the so manyth of its pool (or reward service), from 0. A run without pools (or named reward services)
    has the pool "default", which no id names."""
    engine, key, name = "", f"argosy.services.{role}.python", f"{role}-{number}"
    process = getattr(cfg.argosy.services, role)
    if role == "rollout":
        engine = cfg.actor_rollout_ref.rollout.name
    if role == "rollout" and cfg.argosy.pools:
        seen = cfg.for_pool(pool)
        process, engine, name = (
            seen.argosy.services.rollout,
            seen.actor_rollout_ref.rollout.name,
            f"{role}-{pool}-{number}",
        )
        key = f"argosy.pools.{pool}.python" if cfg.pools[pool].python else key
    if role == "reward" and cfg.argosy.reward.services:
        process, name = cfg.for_reward(pool).argosy.services.reward, f"{role}-{pool}-{number}"
        key = f"argosy.reward.services.{pool}.python" if cfg.rewards[pool].python else key
    return PlannedMember(name, role, pool, engine, process.python, key, process.env)
