"""`actor_rollout_ref.rollout.{multi_turn,agent}.*`: files that are there, and what belongs together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from argosy.config.schema import Config

_ROLLOUT = "actor_rollout_ref.rollout"


def check_agents(config: Config) -> Iterator[str]:
    """A loop that exists, and one that has what it needs."""
    rollout = config.actor_rollout_ref.rollout
    turns, agent = rollout.multi_turn, rollout.agent
    named = agent.default_agent_loop
    if named not in (None, "single_turn_agent", "tool_agent") and agent.agent_loop_config_path is None:
        yield (
            f"{_ROLLOUT}.agent.default_agent_loop: got {named!r}, wants single_turn_agent, tool_agent, or a name of "
            f"{_ROLLOUT}.agent.agent_loop_config_path"
        )
    if named == "tool_agent" and turns.tool_config_path is None and turns.interaction_config_path is None:
        yield (
            f"{_ROLLOUT}.agent.default_agent_loop=tool_agent needs tools or simulated users: set "
            f"{_ROLLOUT}.multi_turn.tool_config_path or interaction_config_path"
        )
    if rollout.uses_agents and config.argosy.agents.episode_timeout_s < config.argosy.agents.tool_timeout_s:
        yield (
            f"argosy.agents.tool_timeout_s: got {config.argosy.agents.tool_timeout_s:g}, more than "
            f"argosy.agents.episode_timeout_s={config.argosy.agents.episode_timeout_s:g}"
        )


def check_agent_files(config: Config) -> Iterator[str]:
    """Files of tools, users and loops that are there."""
    rollout = config.actor_rollout_ref.rollout
    for key, path in (
        ("multi_turn.tool_config_path", rollout.multi_turn.tool_config_path),
        ("multi_turn.interaction_config_path", rollout.multi_turn.interaction_config_path),
        ("agent.agent_loop_config_path", rollout.agent.agent_loop_config_path),
    ):
        if path is not None and not Path(path).expanduser().is_file():
            yield f"{_ROLLOUT}.{key}: no such file: {path}"


def unused_by_agents(config: Config) -> Iterator[str]:
    """Keys of turns that are set while no agent loop runs."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.uses_agents:
        return
    for name in ("tool_config_path", "interaction_config_path", "max_assistant_turns", "max_user_turns"):
        if getattr(rollout.multi_turn, name) is not None:
            yield f"{_ROLLOUT}.multi_turn.{name} has no effect: set {_ROLLOUT}.multi_turn.enable=true."
