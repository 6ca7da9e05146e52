"""Scoring: text and truth go to the reward service group by group, while other groups are still being generated."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from argosy.controller.context import RunContext
from argosy.types.errors import ArgosyError
from argosy.types.ids import GroupId, SampleId
from argosy.types.records import Abstained, Completion, Failed, FinishReason, Outcome, Prompt, ScoreRequest, ScoreResult

log = logging.getLogger(__name__)

MAX_CONCURRENT_CALLS = 8
OVERLONG = Abstained("overlong_prompt")
"""The outcome of a sample that the rollout server ended for its prompt's length: there is no answer to judge."""


class RewardsUnusableError(ArgosyError):
    """Too many samples could not be judged: training on the rest would be training on noise (case G11)."""


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
    )


class RewardStage:
    """Collects completions of one batch and scores each group as soon as it is whole."""

    def __init__(self, ctx: RunContext, prompts: Sequence[Prompt], n: int, tasks: asyncio.TaskGroup) -> None:
        self._ctx = ctx
        self._prompts = {prompt.group: prompt for prompt in prompts}
        self._n = n
        self._tasks = tasks
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_CALLS)
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
        overlong = [completion for completion in completions if completion.overlong_prompt]
        if overlong:
            log.warning("%d samples of prompt %s are not trained: %s", len(overlong), prompt.group, overlong[0].error)
            self.outcomes |= dict.fromkeys([completion.sample_id for completion in overlong], OVERLONG)
        requests = [score_request(prompt, completion) for completion in completions if not completion.overlong_prompt]
        if not requests:
            return
        async with self._slots:
            results = await self._ctx.services.reward.score(requests, deadline_s=self._ctx.deadline_s)
        for result in results:
            self.outcomes[result.sample_id] = result.outcome

    def results(self) -> list[ScoreResult]:
        """All outcomes so far, by sample."""
        return [ScoreResult(sample, outcome) for sample, outcome in self.outcomes.items()]


def check_failures(outcomes: Mapping[SampleId, Outcome], max_error_rate: float) -> dict[str, float]:
    """Metrics of verifier failures. Raises RewardsUnusableError when more than `max_error_rate` of a batch failed."""
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, Failed)]
    rate = len(failures) / max(len(outcomes), 1)
    if failures and rate > max_error_rate:
        (reason, count), *_ = Counter(failure.reason for failure in failures).most_common(1)
        example = next(failure.message for failure in failures if failure.reason == reason)
        raise RewardsUnusableError(
            f"{len(failures)} of {len(outcomes)} samples could not be judged (argosy.reward.max_error_rate="
            f"{max_error_rate:g}); {count} times {reason!r}, for example: {example}"
        )
    metrics = {"reward/failed_fraction": rate}
    for reason, count in Counter(failure.reason for failure in failures).items():
        metrics[f"reward/failed/{reason}"] = float(count)
    return metrics
