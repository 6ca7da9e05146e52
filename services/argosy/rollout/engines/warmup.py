"""A real sample through an engine before anybody waits for one: kernels are chosen, memory is touched, faults show."""

from __future__ import annotations

import asyncio
import time

from argosy.rollout.engines.base import Engine
from argosy.rollout.engines.events import Event
from argosy.types.errors import DeadlineError, InternalError
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import Completion, FinishReason, GenerateRequest, SamplingParams

TOKEN_COUNT = 4
PROMPT_LEN = 8
DEADLINE_S = 600.0
"""A compiling engine may need minutes for its first tokens."""
WARM_UP_VERSION = PolicyVersion("warmup", 0, "")
"""For an engine that samples only under a version, while it has none."""


async def warm_up(engine: Engine) -> float:
    """Sample a few tokens; the seconds that it took.

    Raises:
        InternalError: the engine fails its first sample, so it would fail every other.
        DeadlineError: it hasn't answered within DEADLINE_S.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Completion] = loop.create_future()

    def deliver(event: Event) -> None:
        if isinstance(event, Completion):
            loop.call_soon_threadsafe(ended.set_result, event)

    began = time.perf_counter()
    await engine.submit([_request(engine)], deliver, 0)
    try:
        completion = await asyncio.wait_for(ended, DEADLINE_S)
    except TimeoutError as late:
        raise DeadlineError(f"the engine gave no token within {DEADLINE_S:g} s of its warm-up") from late
    if completion.finish_reason is not FinishReason.LENGTH:
        raise InternalError(
            f"the engine failed its warm-up ({completion.finish_reason.value}): {completion.error or 'no reason told'}"
        )
    return time.perf_counter() - began


def _request(engine: Engine) -> GenerateRequest:
    """A few ids spread over the vocabulary, within whatever context the engine has."""
    facts = engine.facts
    prompt_len = max(1, min(PROMPT_LEN, facts.context_len - 1))
    ids = tuple((13 + 7919 * place) % facts.vocab_size for place in range(prompt_len))
    params = SamplingParams(max_tokens=min(TOKEN_COUNT, facts.context_len - prompt_len), ignore_eos=True)
    return GenerateRequest(SampleId(0, 0, 0), ids, params, purpose="warmup")
