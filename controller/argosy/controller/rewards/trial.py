"""A trial before the first token: samples of each kind that the data holds go to the services that judge them.

What can't be judged here (code where nothing isolates it, a scorer that is refused, a package that isn't installed, a
function that raises whatever it gets, a judge whose key is wrong) so ends the run at its start and not after its first
step. The answers are made up, so little is asked: of services that name their data sources a few samples of each kind;
of a function one of each kind, and more only if it fails; of a model, a judge or an endpoint one in all. What others
run and takes any source isn't tried, nor is what forbids repeats, since it counts its calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from argosy.controller.data.kinds import Kind, kind_of
from argosy.controller.rewards.calls import PERMANENT
from argosy.controller.rewards.router import RewardRouter, RoutedService
from argosy.types.errors import ConfigError
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Outcome, Prompt, ScoreRequest

log = logging.getLogger(__name__)

_MOST_KINDS = 64
_MOST_OF_A_KIND = 4
_DEADLINE_S = 60.0
_COSTLY = frozenset({"model", "judge", "http"})
"""What scores for money, or by much computing, and says of one sample as much as of many: is it there, and does it take
our key?"""
_BROKEN = PERMANENT | {"exception", "bad_return"}
"""Failures of a function that fails whatever it gets."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """What a service is asked about one kind of rows."""

    service: RoutedService
    kind: Kind
    first: Sequence[ScoreRequest]
    then: Sequence[ScoreRequest] = ()
    """Only asked if all of the first fail for good."""
    reasons: frozenset[str] = PERMANENT
    """Of failures that are for good."""

    @property
    def may_fail(self) -> bool:
        """Whether a run that bears failures goes on: what fails for a made-up answer may not for a real one."""
        return self.service.scorer in (*_COSTLY, "function")


async def try_prompts(router: RewardRouter, prompts: Iterable[Prompt], *, max_error_rate: float = 0.0) -> None:
    """Have a made-up answer to each prompt judged.

    Raises ConfigError with each service and kind none of whose prompts can be judged. A function, model, judge or
    endpoint of which the run asks little (it is optional, or `argosy.reward.max_error_rate` is 1) is only warned about.
    """
    kinds: dict[Kind, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        kind = kind_of(prompt.data_source, prompt.ground_truth, prompt.extra_info)
        if (kind in kinds or len(kinds) < _MOST_KINDS) and len(kinds[kind]) < _MOST_OF_A_KIND:
            kinds[kind].append(prompt)
    trials = list(_trials(router, kinds))
    found = await asyncio.gather(*map(_try, trials))
    problems = []
    for trial, problem in zip(trials, found, strict=True):
        if problem and trial.may_fail and (max_error_rate >= 1 or not trial.service.config.required):
            log.warning("%s; the run goes on, since it may do without", problem)
        elif problem:
            problems.append(problem)
    if problems:
        raise ConfigError("\n".join(problems))


def _trials(router: RewardRouter, kinds: dict[Kind, list[Prompt]]) -> Iterator[_Trial]:
    asked: set[str] = set()
    for kind, prompts in kinds.items():
        wrong = [_request(number, kind, prompt, _WRONG) for number, prompt in enumerate(prompts)]
        for service, known in router.judges(kind[0]):
            name = service.replicas.name
            if known.repeat_forbidden or (service.scorer in _COSTLY and name in asked):
                continue
            asked.add(name)
            if service.scorer in _COSTLY:
                yield _Trial(service, kind, wrong[:1], wrong[1:])
            elif service.scorer == "function":
                right = [_request(len(wrong) + number, kind, prompt, _RIGHT) for number, prompt in enumerate(prompts)]
                yield _Trial(service, kind, wrong[:1], [*right, *wrong[1:]], _BROKEN)
            elif "*" not in known.data_sources:
                yield _Trial(service, kind, wrong)


async def _try(trial: _Trial) -> str | None:
    """What is wrong with the service for this kind, in words; None if it can judge it, or may be able to later."""
    replicas, tried = trial.service.replicas, 0
    last: Outcome | None = None
    for requests in (trial.first, trial.then):
        if not requests:
            continue
        tried += len(requests)
        outcomes = list((await replicas.score(requests, deadline_s=_DEADLINE_S)).values())
        for last in outcomes:
            if not isinstance(last, Failed):
                return None
            if last.reason not in trial.reasons:
                log.warning(
                    "the reward service %r did not judge a made-up answer at the start, %s: %s; the run goes on",
                    replicas.name, last.reason, last.message,
                )  # fmt: skip
                return None
    assert isinstance(last, Failed)
    what = f"data source {trial.kind[0]!r}" + (f" with code in {trial.kind[1]}" if trial.kind[1] else "")
    rows = "a row that was tried" if tried == 1 else f"each of {tried} rows that was tried"
    if trial.service.scorer == "function":
        rows = f"each of {tried} made-up answers"
    return (
        f"the reward service {replicas.name!r} can't judge samples of {what}: {rows} failed, {last.reason}: "
        f"{last.message}"
    )


_WRONG = "The answer is \\boxed{{0}}.\n\n#### 0\n\n```{language}\nexit\n```\n"
"""An answer of every form, wrong in each, so that every judge comes to its work."""
_RIGHT = "<think>\nLet me see.\n</think>\n<answer>{truth}</answer>\n\nThe answer is \\boxed{{{truth}}}.\n\n#### {truth}"
"""The ground truth in every form: a function may insist on one."""


def _request(number: int, kind: Kind, prompt: Prompt, answer: str) -> ScoreRequest:
    truth = prompt.ground_truth if isinstance(prompt.ground_truth, str | int | float) else 0
    return ScoreRequest(
        SampleId(0, number, 0),
        data_source=prompt.data_source,
        prompt_text=prompt.text,
        response_text=answer.format(language=kind[1] or "python", truth=truth),
        ground_truth=prompt.ground_truth,
        extra_info=prompt.extra_info,
        prompt_ids=prompt.token_ids,
        response_ids=prompt.token_ids[-1:],
        messages=prompt.messages,
    )
