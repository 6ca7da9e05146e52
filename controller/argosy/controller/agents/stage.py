"""Generation where agent loops lead the samples: the same two calls as the rollout stage has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from argosy.controller.agents.episode import Episode
from argosy.controller.agents.loops.base import AgentLoop
from argosy.controller.agents.setting import AgentSetting
from argosy.controller.context import RunContext
from argosy.controller.stages.answering import Sink
from argosy.controller.stages.rollout import RolloutStage
from argosy.telemetry.traces import span
from argosy.types.ids import GroupId
from argosy.types.records import Completion, Failed, GenerateRequest, Prompt

log = logging.getLogger(__name__)

MAX_LOGGED = 20
"""Failures of loops that are logged with their trace; the reward's error rate counts them all."""


class AgentStage:
    """Leads samples by agent loops over `rollout.generate_one`.

    Args:
        ctx: The run.
        rollout: Who samples turns.
        setting: What the loops share.
        loops: By name.
        default: Of prompts that name none.
    """

    def __init__(
        self,
        ctx: RunContext,
        rollout: RolloutStage,
        setting: AgentSetting,
        loops: Mapping[str, AgentLoop],
        default: str,
    ) -> None:
        self._ctx = ctx
        self.rollout = rollout
        self.setting = setting
        self._loops = loops
        self._default = default
        self._failures = 0

    def of(self, prompts: Sequence[Prompt]) -> PromptAgents:
        """For requests of these prompts."""
        return PromptAgents(self, {prompt.group: prompt for prompt in prompts})

    async def lead(self, request: GenerateRequest, prompt: Prompt) -> Completion:
        """One sample from its prompt to its end; final, whatever its finish reason.

        A loop that raises or takes too long makes it a failed sample, which is not trained. What the rollout servers
        fail with is raised.
        """
        name = prompt.agent_name or self._default
        episode = Episode(request, prompt, self.rollout.generate_one, self.setting.template)
        limit_s = self.setting.limits.episode_timeout_s
        with span("agent.episode", sample=request.key, agent=name):
            try:
                async with asyncio.timeout(limit_s) as scope:
                    await self._loops[name].run(episode)
            except Exception as error:  # noqa: BLE001 - the loop's own failure: this sample is a failed one
                if episode.failure is None:
                    late = isinstance(error, TimeoutError) and scope.expired()
                    episode.outcome = self._failed(name, request, None if late else error)
        if episode.failure is not None:
            raise episode.failure
        return episode.completion()

    def close(self) -> None:
        """End tools and loops."""
        for loop in self._loops.values():
            loop.close()
        for tool in self.setting.tools.values():
            tool.close()

    async def clear_devices(self) -> None:
        """As the rollout stage does before it generates."""
        await self.rollout.clear_devices()

    def _failed(self, name: str, request: GenerateRequest, error: Exception | None) -> Failed:
        limit_s = self.setting.limits.episode_timeout_s
        if error is None:
            message = f"the agent loop {name} took longer than argosy.agents.episode_timeout_s={limit_s:g}"
            failed = Failed("agent_timeout", message)
        else:
            failed = Failed("agent_exception", f"the agent loop {name}: {type(error).__name__}: {error}"[:1000])
        self._failures += 1
        if self._failures <= MAX_LOGGED:
            log.warning("%s is not trained: %s", request.key, failed.message, exc_info=error)
        return failed


class PromptAgents:
    """An AgentStage for some prompts."""

    def __init__(self, stage: AgentStage, prompts: Mapping[GroupId, Prompt]) -> None:
        self._stage = stage
        self._prompts = prompts

    async def generate(self, requests: Sequence[GenerateRequest], sink: Sink) -> None:
        """Hand each request's completion to `sink`, exactly once, as it ends."""
        await self._stage.clear_devices()

        async def one(request: GenerateRequest) -> None:
            await sink(await self.generate_one(request))

        async with asyncio.TaskGroup() as tasks:
            for request in requests:
                tasks.create_task(one(request))

    async def generate_one(self, request: GenerateRequest) -> Completion:
        """One sample, from its prompt on."""
        return await self._stage.lead(request, self._prompts[request.sample_id.group])
