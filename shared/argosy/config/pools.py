"""Rollout pools: `argosy.pools` typed, and the configuration that one pool's servers see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
    from argosy.config.convert import build_section

    if not config.argosy.pools:
        return {DEFAULT_POOL: PoolConfig()}
    problems: list[str] = []
    pools: dict[str, PoolConfig] = {}
    for name, values in config.argosy.pools.items():
        path = f"argosy.pools.{name}"
        if not isinstance(values, Mapping):
            problems.append(f"{path}: wants keys of a pool, such as {{count: 2}}, got {values!r}")
            continue
        try:
            pools[name] = build_section(PoolConfig, values, f"{path}.")
        except ConfigError as error:
            problems.append(error.message)
    if problems:
        raise ConfigError("\n".join(problems))
    return pools


def choose_pool(config: Config, name: str | None) -> str:
    """The pool that a server belongs to. Raises ConfigError on one that isn't there, or if it must be named."""
    pools = pools_of(config)
    if name is None and len(pools) == 1:
        return next(iter(pools))
    if name not in pools:
        got = "which of them is this server in?" if name is None else f"no pool {name!r} in argosy.pools."
        raise ConfigError(f"--pool: {got} The configuration has: {', '.join(pools)}")
    return name


def config_of_pool(config: Config, name: str) -> Config:
    """What the servers of a pool see: the pool's keys in their places, and no pools. Raises ConfigError."""
    pool = pools_of(config)[name]
    values: dict[str, Any] = {
        key: getattr(pool, field) for field, key in _OWN_KEYS.items() if getattr(pool, field) is not None
    }
    problems: list[str] = []
    for section, prefix, given in (("rollout", ROLLOUT, pool.rollout), ("service", SERVICE, pool.service)):
        for key, value in given.items():
            values |= _placed(f"argosy.pools.{name}.{section}.{key}", f"{prefix}.{key}", value, problems)
    if problems:
        raise ConfigError("\n".join(problems))
    values["argosy.services.rollout.env"] = {**config.argosy.services.rollout.env, **pool.env}
    values["argosy.pools"] = {}
    return config.with_values(values)


def _placed(path: str, key: str, value: Any, problems: list[str]) -> dict[str, Any]:
    """Full key → value for one override, in any spelling that is honoured."""
    from argosy.config.lookup import targets_of

    targets = targets_of(key)
    if not targets:
        problems.append(f"{path}: {key} is no key that has an effect here")
    elif RUN_WIDE.intersection(targets):
        problems.append(f"{path}: how tokens are drawn and judged is the same for all pools; set {targets[0]}")
    return dict.fromkeys(targets, value)
