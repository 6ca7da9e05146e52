"""Reward services: `argosy.reward.services` typed, and the configuration that the servers of one see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from argosy.config.schema.rewards import NamedRewardConfig
from argosy.types.errors import ConfigError

if TYPE_CHECKING:
    from argosy.config.schema import Config

DEFAULT_REWARD = "default"
"""The one reward service of a run whose configuration names none."""

SECTION = "argosy.reward"
FUNCTION = "custom_reward_function"

RUN_WIDE = frozenset(f"{SECTION}.{name}" for name in ("services", "sample_attempts", "max_error_rate", "error_window"))
"""Keys that the controller reads: a service's own value would change nothing."""


def rewards_of(config: Config) -> dict[str, NamedRewardConfig]:
    """The reward services of a run by name, in the order given; one where none is named. Raises ConfigError."""
    from argosy.config.convert import build_section

    if not config.argosy.reward.services:
        return {DEFAULT_REWARD: NamedRewardConfig()}
    problems: list[str] = []
    services: dict[str, NamedRewardConfig] = {}
    for name, values in config.argosy.reward.services.items():
        path = f"{SECTION}.services.{name}"
        if not isinstance(values, Mapping):
            problems.append(f"{path}: wants keys of a reward service, such as {{kind: rules}}, got {values!r}")
            continue
        try:
            services[name] = build_section(NamedRewardConfig, values, f"{path}.")
        except ConfigError as error:
            problems.append(error.message)
    if problems:
        raise ConfigError("\n".join(problems))
    return services


def choose_reward(config: Config, name: str | None) -> str:
    """The reward service that a server belongs to. Raises ConfigError on none of these, or if it must be named."""
    services = rewards_of(config)
    if name is None and len(services) == 1:
        return next(iter(services))
    if name not in services:
        got = "which of them is this?" if name is None else f"no service {name!r} in {SECTION}.services."
        raise ConfigError(f"--name: {got} The configuration has: {', '.join(services)}")
    return name


def config_of_reward(config: Config, name: str) -> Config:
    """What the servers of a reward service see: its keys in their places, no other service. Raises ConfigError."""
    service = rewards_of(config)[name]
    if not config.argosy.reward.services:
        return config
    problems: list[str] = []
    # Of several services each says itself whether it is a function: the run's own would otherwise replace them all.
    values: dict[str, Any] = {f"{FUNCTION}.path": None, f"{FUNCTION}.reward_kwargs": {}, f"{SECTION}.services": {}}
    values["reward_model.enable"] = False
    if service.kind is not None:
        values[f"{SECTION}.kind"] = service.kind
    if service.python is not None:
        values["argosy.services.reward.python"] = service.python
    path = f"{SECTION}.services.{name}"
    for key, value in service.custom_reward_function.items():
        values |= _placed(f"{path}.{FUNCTION}.{key}", f"{FUNCTION}.{key}", value, problems)
    for key, value in _flat(SECTION, service.service):
        values |= _placed(f"{path}.service.{key.removeprefix(f'{SECTION}.')}", key, value, problems)
    if problems:
        raise ConfigError("\n".join(problems))
    values["argosy.services.reward.env"] = {**config.argosy.services.reward.env, **service.env}
    return config.with_values(values)


def _flat(prefix: str, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Full key → value of nested keys, down to what is a field."""
    from argosy.config.lookup import is_section

    for name, value in given.items():
        key = f"{prefix}.{name}"
        if is_section(key) and isinstance(value, Mapping):
            yield from _flat(key, value)
        else:
            yield key, value


def _placed(path: str, key: str, value: Any, problems: list[str]) -> dict[str, Any]:
    """Full key → value for one override, in any spelling that is honoured."""
    from argosy.config.lookup import targets_of

    targets = targets_of(key)
    if not targets:
        problems.append(f"{path}: {key} is no key that has an effect here")
    elif RUN_WIDE.intersection(targets):
        problems.append(f"{path}: is the same for all reward services; set {targets[0]}")
    return dict.fromkeys(targets, value)
