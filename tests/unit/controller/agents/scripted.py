"""A policy that says what a test wants, in tokens of a byte tokenizer, and agent stages over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from argosy.config.schema.agents import AgentsConfig, MultiTurnConfig
from argosy.controller.agents.episode import Episode
from argosy.controller.agents.loops.base import AgentLoop
from argosy.controller.agents.parsers import parser
from argosy.controller.agents.setting import AgentSetting
from argosy.controller.agents.template import TurnTemplate
from argosy.controller.agents.tools.base import BaseTool
from argosy.text.tokenizer import load_tokenizer
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.records import Completion, FinishReason, GenerateRequest, Prompt, SamplingParams, VersionRun

END = 2
"""<|im_end|>"""
VERSION = PolicyVersion("l0", 0, "00")


class Policy:
    """Says one text after another; `seen` are the requests."""

    def __init__(self, template: TurnTemplate, *says: str, end: bool = True) -> None:
        self._template = template
        self._says = list(says)
        self._end = end
        self.seen: list[GenerateRequest] = []

    async def __call__(self, request: GenerateRequest) -> Completion:
        self.seen.append(request)
        begun = request.generated
        said = self._template.tokenizer.encode_rendered(self._says[len(self.seen) - 1])
        new = (*said, END) if self._end else said
        room = request.params.max_tokens - len(begun.token_ids)
        new, cut = new[:room], len(new) > room
        return Completion(
            request.sample_id,
            begun.token_ids + new,
            begun.log_probs + tuple(-0.1 * (1 + index) for index in range(len(new))),
            (*begun.versions, VersionRun(VERSION, len(new))),
            FinishReason.LENGTH if cut else FinishReason.STOP,
            text=self._template.tokenizer.decode(begun.token_ids + new),
        )


class Echo(BaseTool):
    """Gives back what it is told, and keeps a list of what happened."""

    def __init__(self, config: Mapping[str, Any] | None = None, name: str = "echo") -> None:
        properties = {"text": {"type": "string"}}
        function = {"name": name, "parameters": {"type": "object", "properties": properties, "required": ["text"]}}
        super().__init__(config or {}, {"type": "function", "function": function})
        self.happened: list[Any] = []

    async def create(self, instance_id: str, **kwargs: Any) -> None:
        self.happened.append(("create", instance_id, kwargs))

    async def execute(self, instance_id: str, parameters: Mapping[str, Any], **kwargs: Any) -> Any:
        self.happened.append(("execute", instance_id, dict(parameters), kwargs))
        return f"<{parameters['text']}>"

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        self.happened.append(("calc_reward", instance_id, kwargs))
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self.happened.append(("release", instance_id, kwargs))


def template_of(folder: Path) -> TurnTemplate:
    return TurnTemplate(load_tokenizer(folder))


def setting_of(template: TurnTemplate, tools: Sequence[BaseTool] = (), **values: Any) -> AgentSetting:
    limits = {name: values.pop(name) for name in list(values) if hasattr(AgentsConfig, name)}
    users = values.pop("interactions", {})
    named = {tool.name: tool for tool in tools}
    turns = MultiTurnConfig(**values)
    return AgentSetting(turns, AgentsConfig(**limits), template, parser(turns.format), named, users)


def prompt_of(template: TurnTemplate, tools: Sequence[BaseTool] = (), **extra: Any) -> Prompt:
    messages = ({"role": "user", "content": "2+2?"},)
    return Prompt(
        GroupId(0, 0),
        template.tokenizer.encode_prompt(messages),
        "s",
        "4",
        extra,
        messages=messages,
        tools=tuple(tool.tool_schema for tool in tools),
    )


async def lead(loop: AgentLoop, policy: Policy, prompt: Prompt, max_tokens: int = 400) -> Completion:
    """One sample, without a stage around it: what a loop raises is raised."""
    request = GenerateRequest(SampleId(0, 0, 0), prompt.token_ids, SamplingParams(max_tokens=max_tokens))
    episode = Episode(request, prompt, policy, loop.setting.template)
    await loop.run(episode)
    return episode.completion()


def call(text: str, name: str = "echo") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {{"text": "{text}"}}}}</tool_call>'
