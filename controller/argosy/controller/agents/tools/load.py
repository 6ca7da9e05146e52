"""Tool files: `actor_rollout_ref.rollout.multi_turn.tool_config_path`, in verl's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy.config.yamlfile import read_mapping
from argosy.controller.agents.classes import find_class
from argosy.controller.agents.parsers.base import Schema
from argosy.controller.agents.tools.base import BaseTool
from argosy.controller.agents.tools.schema import schema_problem
from argosy.types.errors import ConfigError

_KEYS = frozenset({"class_name", "config", "tool_schema"})
_VERL_ONLY = frozenset({"type"})
"""In `config` of verl's files: "native" is the only kind here."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One entry of a tool file, checked."""

    kind: type[BaseTool]
    config: Mapping[str, Any]
    schema: Schema

    @property
    def name(self) -> str:
        """What the model calls it."""
        return str(self.schema["function"]["name"])

    def build(self) -> BaseTool:
        """The tool. Raises ConfigError when its class can't be made of this config."""
        try:
            return self.kind(self.config, self.schema)
        except Exception as error:
            raise ConfigError(f"the tool {self.name} can't be made: {type(error).__name__}: {error}") from error


def read_tools(path: str | Path) -> dict[str, ToolSpec]:
    """The tools of a file by name, in its order.

    Raises:
        ConfigError: It can't be read, names no tools, a class is not found, a schema is missing or is none, or two
            tools have one name.
    """
    file = Path(path).expanduser()
    entries = read_mapping(file).get("tools")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{file}: wants a list `tools:` with at least one entry of class_name, config, tool_schema")
    specs: dict[str, ToolSpec] = {}
    for number, entry in enumerate(entries):
        spec = _read_entry(entry, f"{file}: tools[{number}]", file.parent)
        if spec.name in specs:
            raise ConfigError(f"{file}: two tools are called {spec.name!r}")
        specs[spec.name] = spec
    return specs


def _read_entry(entry: Any, where: str, folder: Path) -> ToolSpec:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: wants class_name, config and tool_schema, got {entry!r}")
    unknown = sorted(set(entry) - _KEYS)
    if unknown:
        raise ConfigError(f"{where}: there is no key {unknown[0]!r}; the keys are class_name, config, tool_schema")
    kind = find_class(entry.get("class_name"), BaseTool, f"{where}.class_name", folder)
    config = entry.get("config") or {}
    if not isinstance(config, Mapping):
        raise ConfigError(f"{where}.config: wants an object, got {config!r}")
    if config.get("type", "native") != "native":
        raise ConfigError(f"{where}.config.type: got {config['type']!r}; only native tools (Python classes) are there")
    for name in ("timeout_s", "max_concurrency"):
        value = config.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ConfigError(f"{where}.config.{name}: wants a number above 0, got {value!r}")
    schema = entry.get("tool_schema") or kind.schema
    if schema is None:
        raise ConfigError(f"{where}: has no tool_schema, and {kind.__name__} brings none")
    problem = schema_problem(schema)
    if problem is not None:
        raise ConfigError(f"{where}.tool_schema {problem}")
    return ToolSpec(kind, {name: value for name, value in config.items() if name not in _VERL_ONLY}, schema)
