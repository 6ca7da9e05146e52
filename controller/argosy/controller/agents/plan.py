"""Which agent loop answers a row, and which tools it is offered: known, and checked, before any process starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from argosy.config import Config
from argosy.config.yamlfile import read_list
from argosy.controller.agents.classes import find_class
from argosy.controller.agents.instructions import instructions, with_instructions
from argosy.controller.agents.interactions.base import Interaction
from argosy.controller.agents.interactions.load import read_interactions
from argosy.controller.agents.loops.base import AgentLoop
from argosy.controller.agents.loops.single_turn import SingleTurnAgent
from argosy.controller.agents.loops.tool_agent import ToolAgent
from argosy.controller.agents.parsers.base import Schema
from argosy.controller.agents.template import TurnTemplate
from argosy.controller.agents.tools.load import ToolSpec, read_tools
from argosy.controller.data.rows import DataRow
from argosy.controller.data.templating import Templated
from argosy.text.tokenizer import TextTokenizer
from argosy.types.errors import ConfigError, InvalidInputError

log = logging.getLogger(__name__)

SINGLE, TOOL = "single_turn_agent", "tool_agent"
BUILT_IN: dict[str, type[AgentLoop]] = {SINGLE: SingleTurnAgent, TOOL: ToolAgent}
_TURNS = "actor_rollout_ref.rollout.multi_turn"


@dataclass(frozen=True, slots=True)
class LoopSpec:
    """An agent loop by name."""

    kind: type[AgentLoop]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """What the configuration says of agents."""

    loops: Mapping[str, LoopSpec]
    tools: Mapping[str, ToolSpec]
    interactions: Mapping[str, Interaction]
    default: str
    """The loop of rows that name none."""
    tool_prompt: str
    form: str
    """How calls are written."""

    def row(self, row: DataRow, where: str) -> Templated:
        """What a row becomes. Raises InvalidInputError, with `where`, on names that don't exist."""
        name = row.agent_name or self.default
        if name not in self.loops:
            raise InvalidInputError(f"{where}: agent_name: got {name!r}, there are {', '.join(self.loops)}")
        if not self.loops[name].kind.offers_tools:
            return Templated(row.messages, row.tools, row.tools, name)
        tools = self._offered(row, where)
        if self.tool_prompt == "template":
            return Templated(row.messages, tools, tools, name)
        if self.tool_prompt == "system" and tools:
            return Templated(with_instructions(row.messages, instructions(tools, self.form)), (), tools, name)
        return Templated(row.messages, (), tools, name)

    def _offered(self, row: DataRow, where: str) -> tuple[Schema, ...]:
        """The row's own `tools` column, or those that extra_info.tool_selection names, or all."""
        given = row.extra_info.get("tools_kwargs")
        chosen = row.extra_info.get("tool_selection")
        own = [str((tool.get("function") or {}).get("name")) for tool in row.tools]
        named = [*(given if isinstance(given, Mapping) else ()), *(chosen if isinstance(chosen, list) else ()), *own]
        unknown = [name for name in named if name not in self.tools]
        if unknown:
            known = ", ".join(self.tools) or "none"
            raise InvalidInputError(
                f"{where}: names the tool {unknown[0]!r}, and {_TURNS}.tool_config_path has {known}"
            )
        if row.tools:
            return row.tools
        if isinstance(chosen, list):
            return tuple(self.tools[name].schema for name in chosen)
        return tuple(spec.schema for spec in self.tools.values())


def plan_of(config: Config) -> AgentPlan | None:
    """None where no agent loop runs. Raises ConfigError on files that are wrong."""
    rollout = config.actor_rollout_ref.rollout
    if not rollout.uses_agents:
        return None
    turns, agent = rollout.multi_turn, rollout.agent
    loops = {name: LoopSpec(kind) for name, kind in BUILT_IN.items()}
    if agent.agent_loop_config_path is not None:
        loops |= read_loops(agent.agent_loop_config_path)
    tools = read_tools(turns.tool_config_path) if turns.tool_config_path is not None else {}
    users = read_interactions(turns.interaction_config_path) if turns.interaction_config_path is not None else {}
    default = agent.default_agent_loop or (TOOL if tools or users else SINGLE)
    if default not in loops:
        raise ConfigError(
            f"actor_rollout_ref.rollout.agent.default_agent_loop: got {default!r}, there are {', '.join(loops)}"
        )
    return AgentPlan(loops, tools, users, default, config.argosy.agents.tool_prompt, turns.format)


def read_loops(path: str | Path) -> dict[str, LoopSpec]:
    """A file of agent loops: a list of name, class_name (or verl's _target_) and further arguments. ConfigError."""
    file = Path(path).expanduser()
    loops: dict[str, LoopSpec] = {}
    for number, entry in enumerate(read_list(file)):
        where = f"{file}: [{number}]"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise ConfigError(f"{where}: wants name and class_name, got {entry!r}")
        options = {key: value for key, value in entry.items() if key not in ("name", "class_name", "_target_")}
        named = entry.get("class_name") or entry.get("_target_")
        kind = find_class(named, AgentLoop, f"{where}.class_name", file.parent)
        if entry["name"] in loops or entry["name"] in BUILT_IN:
            raise ConfigError(f"{where}.name: there is an agent loop {entry['name']!r} already")
        loops[entry["name"]] = LoopSpec(kind, options)
    return loops


def check_template(plan: AgentPlan, config: Config, tokenizer: TextTokenizer) -> TurnTemplate:
    """The template of turns, looked at with everything that may be said. Raises ConfigError where it can't do it."""
    template = TurnTemplate(tokenizer, config.data.apply_chat_template_kwargs)
    schemas = [spec.schema for spec in plan.tools.values()]
    if schemas and plan.tool_prompt == "template" and not template.writes_tools(schemas):
        raise ConfigError(
            f"the chat template of {tokenizer.name} does not write tool definitions, so the model would not know of "
            f"any: set argosy.agents.tool_prompt=system to put them into the system message, =none if the data's "
            "prompts tell of them, or actor_rollout_ref.model.custom_chat_template"
        )
    said: list[Sequence[dict[str, Any]]] = []
    if schemas:
        said.append(
            [{"role": "tool", "content": "RESULT-7f3a", "name": next(iter(plan.tools)), "tool_call_id": "call00000"}]
        )
    if plan.interactions:
        said.append([{"role": "user", "content": "REPLY-7f3a"}])
    for messages in said:
        _judge(template, messages, config.actor_rollout_ref.rollout.multi_turn.tokenization_sanity_check_mode)
    return template


def _judge(template: TurnTemplate, messages: Sequence[dict[str, Any]], mode: str) -> None:
    name = template.tokenizer.name
    try:
        oddities = template.check(messages)
    except InvalidInputError as error:
        raise ConfigError(error.message) from error
    said = str(messages[0]["content"])
    if said not in template.written(messages):
        raise ConfigError(
            f"the chat template of {name} does not write {messages[0]['role']} messages: set "
            "actor_rollout_ref.model.custom_chat_template"
        )
    for oddity in oddities:
        if mode != "disable" and template.rewrites(messages):
            raise ConfigError(
                f"the chat template of {name} is not fit for turns that are kept as they were sampled: {oddity}; set "
                f"{_TURNS}.tokenization_sanity_check_mode=disable to train on the turns as sampled all the same, or "
                "actor_rollout_ref.model.custom_chat_template"
            )
        log.warning("the chat template of %s: %s; turns are trained as they were sampled", name, oddity)
