"""Reward services: each by itself, and all of them together."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from argosy.config.schema import Config, NamedRewardConfig
from argosy.config.validate.placement import check_env
from argosy.types.errors import ConfigError

MAX_SERVERS = 256
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s/:@\[\]]+):(\d{1,5})")
_OURS_ONLY = ("kind", "count", "remote", "python", "env", "custom_reward_function", "service")
"""Keys that mean something only for a service of ours."""

Check = Callable[[Config], Iterable[str]]


def check_rewards(config: Config) -> Iterator[str]:
    """Reward services as a whole; what their servers see is checked by `check_reward_configs`."""
    try:
        services = config.rewards
    except ConfigError as error:
        yield from error.message.splitlines()
        return
    if not config.argosy.reward.services:
        return
    for name, service in services.items():
        yield from _check_service(config, name, service)
    ours = sum(service.count for service in services.values() if not service.address and not service.remote)
    if ours > MAX_SERVERS:
        yield f"argosy.reward.services: {ours} servers in all, wants at most {MAX_SERVERS}"
    if config.argosy.reward.port and ours > 1:
        yield f"argosy.reward.port: got {config.argosy.reward.port} for {ours} servers on this machine; set 0"
    if config.custom_reward_function.path is not None:
        yield (
            "custom_reward_function.path: which of argosy.reward.services is it? Say so there: "
            "argosy.reward.services.NAME.custom_reward_function.path"
        )
    if not any(service.weight for service in services.values()):
        yield "argosy.reward.services: every weight is 0: every reward would be 0"


def _check_service(config: Config, name: str, service: NamedRewardConfig) -> Iterator[str]:
    path = f"argosy.reward.services.{name}"
    if not _NAME.fullmatch(name):
        yield f"argosy.reward.services: {name!r} is no name of a service: wants up to 31 of a-z, 0-9 and -"
    if not math.isfinite(service.weight):
        yield f"{path}.weight: got {service.weight}, wants a finite number"
    yield from _check_clips(path, service)
    limit = service.max_error_rate
    if limit is not None and not 0 <= limit <= 1:
        yield f"{path}.max_error_rate: got {limit:g}, wants a share from 0 to 1, or null for no limit of its own"
    for source in service.data_sources:
        if not source or "*" in source[:-1]:
            yield f"{path}.data_sources: got {source!r}, wants a name, or a prefix that ends with *"
    if service.address:
        yield from _check_external(path, service)
        return
    if service.count < 1:
        yield f"{path}.count: got {service.count}, wants ≥ 1; leave out a service that has no servers"
    yield from check_env(f"{path}.env", service.env)
    inprocess = config.argosy.placement == "inprocess"
    if service.remote and inprocess:
        yield f"{path}.remote: got true with argosy.placement=inprocess, where nothing else can join"
    elif service.remote and not config.argosy.membership.endpoints:
        yield f"{path}.remote: got true without argosy.membership.endpoints: name the etcd that all machines reach"
    if inprocess and service.python is not None:
        yield f"{path}.python: got {service.python!r} with argosy.placement=inprocess, where all is one process"
    if inprocess and service.count > 1:
        yield f"{path}.count: got {service.count} with argosy.placement=inprocess, where one is as good as several"


def _check_clips(path: str, service: NamedRewardConfig) -> Iterator[str]:
    for key in ("clip_min", "clip_max"):
        value = getattr(service, key)
        if value is not None and not math.isfinite(value):
            yield f"{path}.{key}: got {value}, wants a finite number, or null for no bound"
    low, high = service.clip_min, service.clip_max
    if low is not None and high is not None and low >= high:
        yield f"{path}.clip_min: got {low:g} with clip_max={high:g}: every score would count alike"


def _check_external(path: str, service: NamedRewardConfig) -> Iterator[str]:
    for address in service.address:
        matched = _ADDRESS.fullmatch(address)
        if matched is None or not 0 < int(matched.group(2)) < 65536:
            yield f"{path}.address: got {address!r}, wants host:port such as localhost:50051"
    if len(set(service.address)) < len(service.address):
        yield f"{path}.address: got {list(service.address)}, where one is named twice"
    bare = NamedRewardConfig()
    for key in _OURS_ONLY:
        if getattr(service, key) != getattr(bare, key):
            yield f"{path}.{key}: is for a service that is started here; this one has an address"


def check_reward_configs(config: Config, fields: Check, checks: Sequence[Check], known: Iterable[str]) -> Iterator[str]:
    """What is wrong in the configuration that each service's servers see, beyond the problems `known` already.

    `checks` may rely on single fields, which `fields` looks at.
    """
    if not config.argosy.reward.services:
        return
    seen = set(known)
    try:
        derived = {name: config.for_reward(name) for name, one in config.rewards.items() if not one.address}
    except ConfigError as error:
        yield from (line for line in error.message.splitlines() if line not in seen)
        return
    for name, service_config in derived.items():
        found = list(fields(service_config)) or [line for check in checks for line in check(service_config)]
        yield from (f"argosy.reward.services.{name}: {line}" for line in found if line not in seen)


def functions_of(config: Config) -> Mapping[str, str]:
    """Key → the file of each user's scorer. Empty where the services can't be read, which `check_rewards` tells."""
    if not config.argosy.reward.services:
        path = config.custom_reward_function.path
        return {} if path is None else {"custom_reward_function.path": path}
    try:
        return {
            f"argosy.reward.services.{name}.custom_reward_function.path": str(path)
            for name, service in config.rewards.items()
            if (path := service.custom_reward_function.get("path")) is not None
        }
    except ConfigError:
        return {}
