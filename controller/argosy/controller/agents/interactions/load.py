"""Files of simulated users: `actor_rollout_ref.rollout.multi_turn.interaction_config_path`, in verl's form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from argosy.config.yamlfile import read_mapping
from argosy.controller.agents.classes import find_class
from argosy.controller.agents.interactions.base import Interaction
from argosy.types.errors import ConfigError


def read_interactions(path: str | Path) -> dict[str, Interaction]:
    """The users of a file by name. Raises ConfigError."""
    file = Path(path).expanduser()
    entries = read_mapping(file).get("interaction")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{file}: wants a list `interaction:` with at least one entry of name, class_name, config")
    users: dict[str, Interaction] = {}
    for number, entry in enumerate(entries):
        where = f"{file}: interaction[{number}]"
        if not isinstance(entry, Mapping) or not set(entry) <= {"name", "class_name", "config"}:
            raise ConfigError(f"{where}: wants name, class_name and config, got {entry!r}")
        kind = find_class(entry.get("class_name"), Interaction, f"{where}.class_name", file.parent)
        name = entry.get("name") or kind.__name__.lower().removesuffix("interaction")
        if not isinstance(name, str) or name in users:
            raise ConfigError(f"{where}.name: wants a name of its own, got {name!r}")
        try:
            users[name] = kind(entry.get("config") or {})
        except Exception as error:
            raise ConfigError(f"{where}: {name} can't be made: {type(error).__name__}: {error}") from error
    return users
