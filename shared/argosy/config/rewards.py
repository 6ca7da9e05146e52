"""Reward services: `argosy.reward.services` typed, and the configuration that the servers of one see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from argosy.config.named import choose, placed, typed_sections
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

_WHY = "is the same for all reward services"


def rewards_of(config: Config) -> dict[str, NamedRewardConfig]:
    """The reward services of a run by name, in the order given; one where none is named. Raises ConfigError."""
    if not config.argosy.reward.services:
        return {DEFAULT_REWARD: NamedRewardConfig()}
    return typed_sections(
        NamedRewardConfig,
        config.argosy.reward.services,
        f"{SECTION}.services",
        "wants keys of a reward service, such as {kind: rules}",
    )


def choose_reward(config: Config, name: str | None) -> str:
    """The reward service that a server belongs to. Raises ConfigError on none of these, or if it must be named."""
    return choose(
        rewards_of(config),
        name,
        option="--name",
        which="which of them is this?",
        absent=f"no service {name!r} in {SECTION}.services.",
    )


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
        values |= placed(f"{path}.{FUNCTION}.{key}", f"{FUNCTION}.{key}", value, RUN_WIDE, _WHY, problems)
    for key, value in _flat(SECTION, service.service):
        own = f"{path}.service.{key.removeprefix(f'{SECTION}.')}"
        values |= placed(own, key, value, RUN_WIDE, _WHY, problems)
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
