"""Samples with several turns: `actor_rollout_ref.rollout.{multi_turn,agent}.*`, and `argosy.agents.*`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MultiTurnConfig:
    """Turns with tools and simulated users (docs/agents.md)."""

    enable: bool = False
    """Answer every prompt with an agent loop: agent.default_agent_loop, or the one that a row's agent_name names."""
    format: str = "hermes"
    """How the model writes calls: "hermes" ("qwen" is the same: Qwen 2.5 and 3 write so), "qwen3_coder" (XML),
    "llama3_json", "pythonic" or "json"."""
    tool_config_path: str | None = None
    """YAML file of the tools, in verl's form: class_name, config, tool_schema of each."""
    interaction_config_path: str | None = None
    """YAML file of simulated users; rows choose one by extra_info.interaction_kwargs."""
    max_assistant_turns: int | None = None
    """Turns of the policy in one sample; null: as many as data.max_response_length has room for."""
    max_user_turns: int | None = None
    """How often tools or users may speak in between; null is no limit of its own."""
    max_parallel_calls: int = 1
    """Calls of one turn that are made; the model is told that the others weren't."""
    max_tool_response_length: int = 256
    """Characters of a call's result that the model sees."""
    tool_response_truncate_side: str = "middle"
    """Of a longer one: "left" keeps the beginning, "right" the end, "middle" both."""
    tokenization_sanity_check_mode: str = "strict"
    """What to do about a chat template that writes earlier turns otherwise once something follows (one that leaves
    their reasoning out): "strict" refuses it, "ignore_strippable" does too, "disable" warns and trains on the turns as
    they were sampled."""


@dataclass(frozen=True)
class AgentConfig:
    """Which agent loop answers."""

    default_agent_loop: str | None = None
    """For rows without agent_name: "single_turn_agent", "tool_agent", or a name of agent_loop_config_path. null:
    tool_agent where multi_turn.enable is on and there are tools or simulated users, else single_turn_agent."""
    agent_loop_config_path: str | None = None
    """YAML file of your own agent loops: a list of name, class_name and further arguments."""


@dataclass(frozen=True)
class AgentsConfig:
    """What verl has no key for."""

    tool_prompt: str = "template"
    """Who tells the model of the tools: "template": the chat template (refused where it doesn't); "system": Argosy
    writes them into the system message, with how to call them in JSON; "none": the data's prompts do."""
    malformed_calls: str = "tell"
    """After a turn whose calls can't be read: "tell" the model what was wrong, as a tool message, or "end" the
    sample."""
    tool_timeout_s: float = 30.0
    """Seconds that a call may take, unless the tool's own config has timeout_s; then the model is told so."""
    max_concurrent_calls: int = 64
    """Calls of all samples at once; a tool's own config may have a lower max_concurrency."""
    episode_timeout_s: float = 3600.0
    """Seconds that one sample may take in all. Beyond them it counts as failed: not trained, never a 0."""
