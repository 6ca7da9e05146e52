"""Where services run: interpreters, environment variables, rollout pools, shared devices."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from argosy.config.schema import Config, PoolConfig
from argosy.config.schema.services import HIDDEN
from argosy.types.errors import ConfigError

ROLES = ("rollout", "reward", "reference", "trainer", "critic")
MAX_VARIABLES = 64
MAX_VALUE_LENGTH = 32768
MAX_SERVERS = 1024
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_POOL_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")

Check = Callable[[Config], Iterable[str]]


def check_services(config: Config) -> Iterator[str]:
    """Interpreters and environment variables by role."""
    for role in ROLES:
        process = getattr(config.argosy.services, role)
        yield from check_env(f"argosy.services.{role}.env", process.env)
        if process.python is not None and config.argosy.placement == "inprocess":
            yield (
                f"argosy.services.{role}.python: got {process.python!r} with argosy.placement=inprocess, where all is "
                "one process; set argosy.placement=local"
            )


def check_fleet(config: Config) -> Iterator[str]:
    """What services and controllers that are started one by one must have in common, and what they can't have."""
    argosy = config.argosy
    if argosy.placement != "fleet":
        return
    if not argosy.membership.endpoints:
        yield "argosy.membership.endpoints: is empty with argosy.placement=fleet: name the etcd that all machines reach"
    if not argosy.run_id:
        yield "argosy.run_id: is null with argosy.placement=fleet: give all services and controllers of a run one name"
    if argosy.rollout_only:
        yield "argosy.placement: got 'fleet' for rollouts without a trainer: set argosy.placement=local"
    for role in ROLES:
        if getattr(argosy.services, role).python is not None:
            yield (
                f"argosy.services.{role}.python: is for services that are started here, and argosy.placement=fleet "
                "starts none: run `argosy serve` with that interpreter"
            )


def check_env(path: str, env: Mapping[str, str]) -> Iterator[str]:
    """Environment variables of a service, at the key `path`."""
    if len(env) > MAX_VARIABLES:
        yield f"{path}: has {len(env)} variables, wants at most {MAX_VARIABLES}"
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            yield f"{path}: {name!r} is no name of an environment variable"
        elif value == HIDDEN:
            yield (
                f"{path}.{name}: is {HIDDEN}, which stands for a secret in a written configuration; give the value, or "
                "leave the key out and export the variable before the start"
            )
        elif len(value) > MAX_VALUE_LENGTH or "\0" in value:
            yield f"{path}.{name}: wants at most {MAX_VALUE_LENGTH} characters, none of them NUL"


def check_pools(config: Config) -> Iterator[str]:
    """Rollout pools as a whole; what their servers see is checked by `check_pool_configs`."""
    try:
        pools = config.pools
    except ConfigError as error:
        yield from error.message.splitlines()
        return
    for name, pool in pools.items():
        yield from _check_pool(config, name, pool)
    servers = sum(pool.count for pool in pools.values())
    if servers > MAX_SERVERS:
        yield f"argosy.pools: {servers} servers in all, wants at most {MAX_SERVERS}"
    if config.argosy.deterministic and servers > 1:
        yield (
            f"argosy.pools: {servers} rollout servers with argosy.deterministic=true, which holds with one: which "
            "samples share a batch would depend on how fast each server is"
        )
    port = config.argosy.rollout.port
    if port and sum(pool.count for pool in pools.values() if not pool.remote) > 1:
        yield f"argosy.rollout.port: got {port} for several servers on this machine; set 0: each takes a free port"


def _check_pool(config: Config, name: str, pool: PoolConfig) -> Iterator[str]:
    path = f"argosy.pools.{name}"
    if not _POOL_NAME.fullmatch(name):
        yield f"argosy.pools: {name!r} is no name of a pool: wants up to 31 of a-z, 0-9 and -"
    if pool.count < 1:
        yield f"{path}.count: got {pool.count}, wants ≥ 1; leave out a pool that has no servers"
    yield from check_env(f"{path}.env", pool.env)
    if pool.remote:
        yield from _check_remote(config, path)
    if pool.python is not None and config.argosy.placement == "inprocess":
        yield f"{path}.python: got {pool.python!r} with argosy.placement=inprocess, where all is one process"


def _check_remote(config: Config, path: str) -> Iterator[str]:
    if config.argosy.placement == "inprocess":
        yield f"{path}.remote: got true with argosy.placement=inprocess, where nothing else can join"
    elif not config.argosy.membership.endpoints:
        yield f"{path}.remote: got true without argosy.membership.endpoints: name the etcd that all machines reach"
    if config.argosy.colocated:
        yield f"{path}.remote: got true with argosy.colocated=true: such a server doesn't share the trainer's devices"


def check_pool_configs(config: Config, fields: Check, checks: Sequence[Check], known: Iterable[str]) -> Iterator[str]:
    """What is wrong in the configuration that each pool's servers see, beyond the problems `known` already.

    `checks` may rely on single fields, which `fields` looks at.
    """
    if not config.argosy.pools:
        return
    seen = set(known)
    try:
        derived = {name: config.for_pool(name) for name in config.pools}
    except ConfigError as error:
        yield from (line for line in error.message.splitlines() if line not in seen)
        return
    for name, pool_config in derived.items():
        found = list(fields(pool_config)) or [line for check in checks for line in check(pool_config)]
        yield from (f"argosy.pools.{name}: {line}" for line in found if line not in seen)


def check_interpreters(config: Config) -> Iterator[str]:
    """Interpreters that aren't there. Whether they have what they need, the launcher asks them."""
    for role in ROLES:
        yield from _check_interpreter(f"argosy.services.{role}.python", getattr(config.argosy.services, role).python)
    try:
        pools = config.pools
    except ConfigError:
        return  # told by check_pools
    for name, pool in pools.items():
        if not pool.remote:
            yield from _check_interpreter(f"argosy.pools.{name}.python", pool.python)
    try:
        rewards = config.rewards
    except ConfigError:
        return  # told by check_rewards
    for name, service in rewards.items():
        if not service.remote:
            yield from _check_interpreter(f"argosy.reward.services.{name}.python", service.python)


def _check_interpreter(key: str, python: str | None) -> Iterator[str]:
    if python is None:
        return
    path = Path(python).expanduser()
    if not path.is_file():
        hint = "" if path.is_absolute() else f" (seen from {Path.cwd()})"
        folder = "; is a folder: name the python in its bin/" if path.is_dir() else ""
        yield f"{key}: no such interpreter: {python}{hint}{folder}"
    elif not os.access(path, os.X_OK):
        yield f"{key}: can't be executed: {python}"
