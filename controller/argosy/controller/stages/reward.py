"""Scoring: text and truth go to the reward service group by group, while other groups are still being generated."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence

from argosy.controller.context import RunContext
from argosy.roles.reward import Reward
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Abstained, Completion, FinishReason, Outcome, Prompt, ScoreRequest, ScoreResult

log = logging.getLogger(__name__)

MAX_CONCURRENT_CALLS = 8
OVERLONG = Abstained("overlong_prompt")
"""The outcome of a sample that the rollout server ended for its prompt's length: there is no answer to judge."""


def score_request(prompt: Prompt, completion: Completion) -> ScoreRequest:
    """What the reward service gets for one sample."""
    return ScoreRequest(
        sample_id=completion.sample_id,
        data_source=prompt.data_source,
        prompt_text=prompt.text,
        response_text=completion.text,
        ground_truth=prompt.ground_truth,
        extra_info=prompt.extra_info,
        prompt_ids=prompt.token_ids,
        response_ids=completion.token_ids,
        valid_response=completion.finish_reason is not FinishReason.LENGTH,
        messages=(*prompt.messages, *completion.messages),
    )


class RewardStage:
    """Collects completions of one batch and scores each group as soon as it is whole.

    `reward`: Who scores; by default the run's reward services, on training's account.
    `slots`: How many calls may run at once, shared with others; by default MAX_CONCURRENT_CALLS of its own.
    """

    def __init__(
        self,
        ctx: RunContext,
        prompts: Sequence[Prompt],
        n: int,
        tasks: asyncio.TaskGroup,
        reward: Reward | None = None,
        slots: asyncio.Semaphore | None = None,
    ) -> None:
        self._ctx = ctx
        self._reward = ctx.services.reward if reward is None else reward
        self._prompts = {prompt.group: prompt for prompt in prompts}
        self._n = n
        self._tasks = tasks
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_CALLS) if slots is None else slots
        self._groups: dict[GroupId, list[Completion]] = defaultdict(list)
        self.outcomes: dict[SampleId, Outcome] = {}
        """Filled as answers arrive; whole when the task group has ended."""

    async def add(self, completion: Completion) -> None:
        """Take one completion; a group that is now whole is sent off."""
        group = self._groups[completion.sample_id.group]
        group.append(completion)
        if len(group) == self._n:
            self._tasks.create_task(self._score(self._prompts[completion.sample_id.group], list(group)))

    async def _score(self, prompt: Prompt, completions: Sequence[Completion]) -> None:
        overlong = [one for one in completions if one.overlong_prompt and one.outcome is None]
        if overlong:
            log.warning("%d samples of prompt %s are not trained: %s", len(overlong), prompt.group, overlong[0].error)
            self.outcomes |= dict.fromkeys([completion.sample_id for completion in overlong], OVERLONG)
        came_along = {one.sample_id: one.outcome for one in completions if one.outcome is not None}
        self.outcomes |= came_along
        requests = [
            score_request(prompt, completion)
            for completion in completions
            if not completion.overlong_prompt and completion.sample_id not in came_along
        ]
        if not requests:
            return
        async with self._slots:
            results = await self._reward.score(requests, deadline_s=self._ctx.deadline_s)
        for result in results:
            self.outcomes[result.sample_id] = result.outcome

    def by_source(self) -> list[tuple[str, Outcome]]:
        """All outcomes so far, each with its data source."""
        return [(self._prompts[sample.group].data_source, outcome) for sample, outcome in self.outcomes.items()]

    def results(self) -> list[ScoreResult]:
        """All outcomes so far, by sample."""
        return [ScoreResult(sample, outcome) for sample, outcome in self.outcomes.items()]
