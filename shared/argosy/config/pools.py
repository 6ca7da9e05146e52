"""Rollout pools: `argosy.pools` typed, and the configuration that one pool's servers see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from argosy.config.named import choose, placed, typed_sections
from argosy.config.schema.services import DEFAULT_POOL, PoolConfig
from argosy.types.errors import ConfigError

if TYPE_CHECKING:
    from argosy.config.schema import Config

ROLLOUT = "actor_rollout_ref.rollout"
SERVICE = "argosy.rollout"

RUN_WIDE = frozenset(
    {
        f"{ROLLOUT}.{name}"
        for name in (
            "n", "do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "ignore_eos", "val_kwargs",
            "log_prob_micro_batch_size_per_gpu", "log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu",
        )
    }
    | {f"{SERVICE}.{name}" for name in ("min_p", "min_response_length", "stop", "stop_token_ids")}
)  # fmt: skip
"""Keys that the controller reads: they travel in requests, so that a pool's own value would change nothing."""

_WHY = "how tokens are drawn and judged is the same for all pools"

_OWN_KEYS = {
    "engine": f"{ROLLOUT}.name",
    "dtype": f"{SERVICE}.dtype",
    "device": f"{SERVICE}.device",
    "threads": f"{SERVICE}.threads",
    "python": "argosy.services.rollout.python",
}
"""Field of a pool → the key that it stands for."""


def pools_of(config: Config) -> dict[str, PoolConfig]:
    """The pools of a run by name, in the order given; one of one server where none is named. Raises ConfigError."""
    if not config.argosy.pools:
        return {DEFAULT_POOL: PoolConfig()}
    return typed_sections(PoolConfig, config.argosy.pools, "argosy.pools", "wants keys of a pool, such as {count: 2}")


def choose_pool(config: Config, name: str | None) -> str:
    """The pool that a server belongs to. Raises ConfigError on one that isn't there, or if it must be named."""
    return choose(
        pools_of(config),
        name,
        option="--pool",
        which="which of them is this server in?",
        absent=f"no pool {name!r} in argosy.pools.",
    )


def config_of_pool(config: Config, name: str) -> Config:
    """What the servers of a pool see: the pool's keys in their places, and no pools. Raises ConfigError."""
    pool = pools_of(config)[name]
    values: dict[str, Any] = {
        key: getattr(pool, field) for field, key in _OWN_KEYS.items() if getattr(pool, field) is not None
    }
    problems: list[str] = []
    for section, prefix, given in (("rollout", ROLLOUT, pool.rollout), ("service", SERVICE, pool.service)):
        for key, value in given.items():
            path = f"argosy.pools.{name}.{section}.{key}"
            values |= placed(path, f"{prefix}.{key}", value, RUN_WIDE, _WHY, problems)
    if problems:
        raise ConfigError("\n".join(problems))
    values["argosy.services.rollout.env"] = {**config.argosy.services.rollout.env, **pool.env}
    values["argosy.pools"] = {}
    return config.with_values(values)
