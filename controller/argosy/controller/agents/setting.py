"""What agent loops work with: limits, tools, parser, the model's text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from argosy.config.schema.agents import AgentsConfig, MultiTurnConfig
from argosy.controller.agents.interactions.base import Interaction
from argosy.controller.agents.parsers import ToolParser
from argosy.controller.agents.template import TurnTemplate
from argosy.controller.agents.tools.base import BaseTool


@dataclass(frozen=True, slots=True)
class AgentSetting:
    """One for all loops of a run."""

    multi_turn: MultiTurnConfig
    """`actor_rollout_ref.rollout.multi_turn`: limits."""
    limits: AgentsConfig
    """`argosy.agents`: times, and how many calls at once."""
    template: TurnTemplate
    """Has the tokenizer."""
    parser: ToolParser
    tools: Mapping[str, BaseTool] = field(default_factory=dict)
    """By name."""
    interactions: Mapping[str, Interaction] = field(default_factory=dict)
    """Simulated users by name."""
