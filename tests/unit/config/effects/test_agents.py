"""`multi_turn.*`, `agent.*` and `argosy.agents.*` change how a conversation goes on, and when it ends."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from argosy.config import Config
from argosy.controller.agents.build import build_agents
from argosy.controller.agents.template import TurnTemplate
from argosy.controller.context import RunContext
from argosy.controller.data.prompts import load_prompts
from argosy.controller.data.tokenizer import tokenizer_of
from argosy.controller.stages.rollout import RolloutStage
from argosy.types.errors import ConfigError, InvalidInputError
from argosy.types.ids import SampleId
from argosy.types.records import Completion, Failed, GenerateRequest, SamplingParams
from unit.controller.agents.scripted import Policy, call

CODE = """
import asyncio
from argosy.controller.agents.interactions import Interaction
from argosy.controller.agents.loops.base import AgentLoop
from argosy.controller.agents.tools import BaseTool

class Echo(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        if parameters["text"] == "wait":
            await asyncio.sleep(0.3)
        return f"<{parameters['text']}>"

class Asks(Interaction):
    async def generate_response(self, instance_id, messages, **kwargs):
        return False, "Sure?", 0.0, {}

class Twice(AgentLoop):
    def __init__(self, setting, says="more", pause_s=0.0):
        super().__init__(setting)
        self.says, self.pause_s = says, pause_s

    async def run(self, episode):
        await episode.generate()
        await asyncio.sleep(self.pause_s)
        if await episode.say([{"role": "user", "content": self.says}]):
            await episode.generate()
"""
TOOLS = """
tools:
  - class_name: own.py:Echo
    tool_schema:
      type: function
      function: {name: echo, parameters: {type: object, properties: {text: {type: string}}, required: [text]}}
"""
USERS = "interaction:\n  - {name: asks, class_name: 'own.py:Asks'}\n"


@pytest.fixture
def agents(job: Config, tmp_path: Path) -> Config:
    """The job with one tool, which the system message tells of."""
    (tmp_path / "own.py").write_text(textwrap.dedent(CODE))
    (tmp_path / "tools.yaml").write_text(TOOLS)
    (tmp_path / "users.yaml").write_text(USERS)
    (tmp_path / "loops.yaml").write_text("- {name: twice, class_name: 'own.py:Twice', says: again}\n")
    return job.with_values({
        "actor_rollout_ref.rollout.multi_turn.enable": True,
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": str(tmp_path / "tools.yaml"),
        "argosy.agents.tool_prompt": "system", "data.max_prompt_length": 512,
    })  # fmt: skip


def lead(config: Config, *says: str, interaction: bool = False, tokens: int = 4000) -> Completion:
    """One conversation with a policy that says what it is told to."""
    stage = build_agents(cast(RunContext, SimpleNamespace(config=config)), cast(RolloutStage, None))
    assert stage is not None
    prompt = next(load_prompts(config, "train", progress=False).in_order())
    if interaction:
        prompt.extra_info["interaction_kwargs"] = {}  # type: ignore[index]
    policy = Policy(TurnTemplate(tokenizer_of(config)), *says)
    stage.rollout = cast(RolloutStage, SimpleNamespace(generate_one=policy))
    request = GenerateRequest(SampleId(0, 0, 0), prompt.token_ids, SamplingParams(max_tokens=tokens))
    try:
        return asyncio.run(stage.of([prompt]).generate_one(request))
    finally:
        stage.close()


def told(completion: Completion) -> list[str]:
    return [str(message["content"]) for message in completion.messages if message["role"] != "assistant"]


def test_enable(agents: Config) -> None:
    off = agents.with_values({"actor_rollout_ref.rollout.multi_turn.enable": False})
    assert build_agents(cast(RunContext, SimpleNamespace(config=off)), cast(RolloutStage, None)) is None
    assert told(lead(agents, call("a"), "Ok.")) == ["<a>"]


def test_format(agents: Config) -> None:
    changed = agents.with_values({"actor_rollout_ref.rollout.multi_turn.format": "pythonic"})
    assert told(lead(changed, '[echo(text="a")]', "Ok.")) == ["<a>"]
    assert told(lead(changed, call("a"))) == []
    assert "[echo(text=…)]" in next(load_prompts(changed, "train").in_order()).text


def test_tool_config_path(agents: Config, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't read .*other\.yaml"):
        lead(
            agents.with_values({"actor_rollout_ref.rollout.multi_turn.tool_config_path": str(tmp_path / "other.yaml")}),
            "a",
        )
    assert '"name": "echo"' in next(load_prompts(agents, "train").in_order()).text


def test_interaction_config_path(agents: Config, tmp_path: Path) -> None:
    changed = agents.with_values(
        {"actor_rollout_ref.rollout.multi_turn.interaction_config_path": str(tmp_path / "users.yaml")}
    )
    changed = changed.with_values({"actor_rollout_ref.rollout.multi_turn.max_user_turns": 1})
    assert told(lead(agents, "a", interaction=True)) == []
    assert told(lead(changed, "a", "b", interaction=True)) == ["Sure?"]


def test_max_assistant_turns(agents: Config) -> None:
    assert (
        lead(
            agents.with_values({"actor_rollout_ref.rollout.multi_turn.max_assistant_turns": 2}), *[call("a")] * 5
        ).turn_count
        == 2
    )


def test_max_user_turns(agents: Config) -> None:
    assert (
        lead(
            agents.with_values({"actor_rollout_ref.rollout.multi_turn.max_user_turns": 2}), *[call("a")] * 5
        ).turn_count
        == 3
    )


def test_max_parallel_calls(agents: Config) -> None:
    says = (call("a") + call("b"), "Ok.")
    assert "1 more calls were not made" in told(lead(agents, *says))[1]
    assert told(lead(agents.with_values({"actor_rollout_ref.rollout.multi_turn.max_parallel_calls": 2}), *says)) == [
        "<a>",
        "<b>",
    ]


def test_max_tool_response_length(agents: Config) -> None:
    changed = agents.with_values({"actor_rollout_ref.rollout.multi_turn.max_tool_response_length": 2})
    assert told(lead(changed, call("abc"), "Ok.")) == ["<...(truncated)...>"]


def test_tool_response_truncate_side(agents: Config) -> None:
    changed = agents.with_values(
        {
            "actor_rollout_ref.rollout.multi_turn.max_tool_response_length": 2,
            "actor_rollout_ref.rollout.multi_turn.tool_response_truncate_side": "left",
        }
    )
    assert told(lead(changed, call("abc"), "Ok.")) == ["<a...(truncated)"]


def test_tokenization_sanity_check_mode(agents: Config) -> None:
    """A template that leaves reasoning out of all but the last turn."""
    forgetful = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content if loop.last or m.role != 'assistant' else m.content.split('</think>')[-1] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    odd = agents.with_values({"actor_rollout_ref.model.custom_chat_template": forgetful})
    with pytest.raises(ConfigError, match="leaves reasoning out"):
        lead(odd, call("a"), "Ok.")
    kept = odd.with_values({"actor_rollout_ref.rollout.multi_turn.tokenization_sanity_check_mode": "disable"})
    assert "<think>x</think>" in lead(kept, f"<think>x</think>{call('a')}", "Ok.").text


def test_default_agent_loop(agents: Config) -> None:
    assert (
        told(
            lead(
                agents.with_values({"actor_rollout_ref.rollout.agent.default_agent_loop": "single_turn_agent"}),
                call("a"),
            )
        )
        == []
    )


def test_agent_loop_config_path(agents: Config, tmp_path: Path) -> None:
    changed = agents.with_values({
        "actor_rollout_ref.rollout.agent.default_agent_loop": "twice",
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": str(tmp_path / "loops.yaml")
    })  # fmt: skip
    assert told(lead(changed, "a", "b")) == ["again"]


def test_tool_prompt(agents: Config) -> None:
    """The tiny model's own template doesn't write tools."""
    with pytest.raises(ConfigError, match="does not write tool definitions"):
        load_prompts(agents.with_values({"argosy.agents.tool_prompt": "template"}), "train")
    assert (
        "echo"
        not in next(load_prompts(agents.with_values({"argosy.agents.tool_prompt": "none"}), "train").in_order()).text
    )
    assert "<|im_start|>system\nTools:" in next(load_prompts(agents, "train").in_order()).text


def test_malformed_calls(agents: Config) -> None:
    broken = "<tool_call>{</tool_call>"
    assert lead(agents, broken, "Ok.").turn_count == 2
    assert lead(agents.with_values({"argosy.agents.malformed_calls": "end"}), broken).turn_count == 1


def test_tool_timeout_s(agents: Config) -> None:
    assert told(lead(agents, call("wait"), "Ok.")) == ["<wait>"]
    changed = agents.with_values({"argosy.agents.tool_timeout_s": 0.01})
    assert told(lead(changed, call("wait"), "Ok.")) == ["error: echo took longer than 0.01 s"]


def test_max_concurrent_calls(agents: Config) -> None:
    """With one call at a time, two that wait take twice as long."""
    changed = agents.with_values(
        {"argosy.agents.max_concurrent_calls": 1, "actor_rollout_ref.rollout.multi_turn.max_parallel_calls": 2}
    )

    def seconds(config: Config) -> float:
        clock = asyncio.new_event_loop().time
        began = clock()
        lead(config, call("wait") + call("wait"), "Ok.")
        return clock() - began

    assert seconds(changed) >= 0.6


def test_episode_timeout_s(agents: Config, tmp_path: Path) -> None:
    (tmp_path / "loops.yaml").write_text("- {name: twice, class_name: 'own.py:Twice', pause_s: 60}\n")
    slow = agents.with_values({
        "actor_rollout_ref.rollout.agent.default_agent_loop": "twice",
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": str(tmp_path / "loops.yaml"),
        "argosy.agents.episode_timeout_s": 0.1,
    })  # fmt: skip
    done = lead(slow, "a", "b")
    assert isinstance(done.outcome, Failed)
    assert done.outcome.reason == "agent_timeout"
    assert done.turn_count == 1


def test_a_row_that_names_an_agent_or_a_tool_that_is_not_there(agents: Config, tmp_path: Path) -> None:
    rows = (tmp_path / "train.jsonl").read_text().replace('"ability"', '"agent_name": "robot", "ability"')
    (tmp_path / "train.jsonl").write_text(rows)
    with pytest.raises(InvalidInputError, match=r"row 0 .*agent_name: got 'robot', there are single_turn_agent"):
        load_prompts(agents, "train")
    with pytest.raises(InvalidInputError, match=r"no agents are configured: set .*multi_turn\.enable=true"):
        load_prompts(agents.with_values({"actor_rollout_ref.rollout.multi_turn.enable": False}), "train")


def test_a_row_chooses_among_the_tools(agents: Config, tmp_path: Path) -> None:
    def rows(extra: str) -> Any:
        original = (tmp_path / "val.jsonl").read_text()
        (tmp_path / "train.jsonl").write_text(original.replace('"extra_info": {', f'"extra_info": {{{extra}, '))
        return next(load_prompts(agents, "train").in_order())

    assert [tool["function"]["name"] for tool in rows('"other": 1').tools] == ["echo"]
    assert rows('"tool_selection": []').tools == ()
    with pytest.raises(InvalidInputError, match=r"names the tool .search., and .* has echo"):
        rows('"tools_kwargs": {"search": {}}')
