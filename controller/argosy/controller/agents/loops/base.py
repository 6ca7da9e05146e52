"""What an agent loop is. One of your own extends AgentLoop and is named in a file of agent loops:

class Twice(AgentLoop):
    async def run(self, episode):
        await episode.generate()
        if await episode.say([{"role": "user", "content": "Are you sure?"}]):
            await episode.generate()

# agents.yaml, for actor_rollout_ref.rollout.agent.agent_loop_config_path
- name: twice
  class_name: my_agents.Twice
"""

from __future__ import annotations

from typing import Any, ClassVar

from argosy.controller.agents.episode import Episode
from argosy.controller.agents.setting import AgentSetting


class AgentLoop:
    """Leads the conversation of a sample. One object serves all samples at once.

    Args:
        setting: Tools, parser, limits and tokenizer of the run.
        options: What else the file of agent loops has for it.
    """

    offers_tools: ClassVar[bool] = False
    """Whether prompts are templated with the run's tools."""

    def __init__(self, setting: AgentSetting, **options: Any) -> None:
        self.setting = setting
        if options:
            raise TypeError(f"{type(self).__name__} takes no option {next(iter(options))!r}")

    async def run(self, episode: Episode) -> None:
        """Lead one sample from its prompt to its end. An exception makes the sample a failed one: not trained, counted,
        and too many of them stop the run."""
        raise NotImplementedError(f"{type(self).__name__} has no run()")

    def close(self) -> None:
        """At the run's end."""
