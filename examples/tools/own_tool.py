"""A tool and an agent loop of one's own. They keep nothing between calls, so one object can serve all samples.

actor_rollout_ref.rollout.multi_turn.tool_config_path=examples/tools/own_tool.yaml
actor_rollout_ref.rollout.agent.agent_loop_config_path=examples/tools/own_loop.yaml
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from argosy.controller.agents.episode import Episode
from argosy.controller.agents.loops.base import AgentLoop
from argosy.controller.agents.setting import AgentSetting
from argosy.controller.agents.tools import BaseTool, ToolResponse

UNITS = {"mm": 0.001, "cm": 0.01, "m": 1.0, "km": 1000.0, "inch": 0.0254, "foot": 0.3048, "mile": 1609.344}


class Convert(BaseTool):
    """Converts lengths. The schema is in the tool file; arguments that don't fit it never come here."""

    async def execute(self, instance_id: str, parameters: Mapping[str, Any], **kwargs: Any) -> ToolResponse:
        """The converted length; a bad unit is told to the model and costs it a little."""
        source, target = str(parameters["source"]), str(parameters["target"])
        unknown = [unit for unit in (source, target) if unit not in UNITS]
        if unknown:
            return ToolResponse(f"error: no unit {unknown[0]}; there are {', '.join(UNITS)}", reward=-0.1, failed=True)
        return ToolResponse(f"{parameters['value'] * UNITS[source] / UNITS[target]:g}")


class AskAgain(AgentLoop):
    """Lets the model answer, asks whether it is sure, and rewards an answer that stays."""

    def __init__(self, setting: AgentSetting, question: str = "Are you sure?", bonus: float = 0.1) -> None:
        super().__init__(setting)
        self._question = question
        self._bonus = bonus

    async def run(self, episode: Episode) -> None:
        """Two turns, unless there is no room for the second."""
        first = await episode.generate()
        if await episode.say([{"role": "user", "content": self._question}]):
            second = await episode.generate()
            episode.reward(self._bonus * (second.text.strip() == first.text.strip()))
