"""A trial before the first token: samples of each kind that the data holds go to the services that judge them.

What can't be judged here (code where nothing isolates it, a scorer that is refused, a package that isn't installed,
rows without a ground truth that their verifier needs) so ends the run at its start and not after its first step. Only
services that name their data sources are tried: one that takes any source (a function, a model, a judge, an endpoint)
would judge an answer that nobody gave, and one that forbids repeats would count it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

from argosy.controller.data.kinds import Kind, kind_of
from argosy.controller.rewards.calls import PERMANENT
from argosy.controller.rewards.replicas import ReplicaSet
from argosy.controller.rewards.router import RewardRouter
from argosy.types.errors import ConfigError
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Outcome, Prompt, ScoreRequest

_MOST_KINDS = 64
_MOST_OF_A_KIND = 4
_DEADLINE_S = 60.0


async def try_prompts(router: RewardRouter, prompts: Iterable[Prompt]) -> None:
    """Have an answer to each prompt judged. Raises ConfigError with each kind none of whose prompts can be judged."""
    kinds: dict[Kind, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        kind = kind_of(prompt.data_source, prompt.ground_truth, prompt.extra_info)
        if (kind in kinds or len(kinds) < _MOST_KINDS) and len(kinds[kind]) < _MOST_OF_A_KIND:
            kinds[kind].append(prompt)
    asked = [(kind, replicas) for kind in kinds for replicas in router.named_judges(kind[0])]
    found = await asyncio.gather(*(_try(replicas, kind, kinds[kind]) for kind, replicas in asked))
    problems = [problem for problem in found if problem]
    if problems:
        raise ConfigError("\n".join(problems))


async def _try(replicas: ReplicaSet, kind: Kind, prompts: Sequence[Prompt]) -> str | None:
    requests = [_request(number, kind, prompt) for number, prompt in enumerate(prompts)]
    outcomes = list((await replicas.score(requests, deadline_s=_DEADLINE_S)).values())
    failures = [outcome for outcome in outcomes if _for_good(outcome)]
    if len(failures) < len(outcomes):
        return None
    what = f"data source {kind[0]!r}" + (f" with code in {kind[1]}" if kind[1] else "")
    tried = "a row" if len(failures) == 1 else f"each of {len(failures)} rows"
    last = failures[-1]
    assert isinstance(last, Failed)
    return (
        f"the reward service {replicas.name!r} can't judge samples of {what}: {tried} that was tried failed, "
        f"{last.reason}: {last.message}"
    )


def _for_good(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and outcome.reason in PERMANENT


def _request(number: int, kind: Kind, prompt: Prompt) -> ScoreRequest:
    """An answer of every form, wrong in each, so that every judge comes to its work."""
    answer = f"The answer is \\boxed{{0}}.\n\n#### 0\n\n```{kind[1] or 'python'}\nexit\n```\n"
    return ScoreRequest(
        SampleId(0, number, 0),
        data_source=prompt.data_source,
        prompt_text=prompt.text,
        response_text=answer,
        ground_truth=prompt.ground_truth,
        extra_info=prompt.extra_info,
        prompt_ids=prompt.token_ids,
        response_ids=prompt.token_ids[-1:],
        messages=prompt.messages,
    )
