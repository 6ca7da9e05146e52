"""What no service can judge here ends a run at its start, with the service's own words (cases A8, G11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.rewards.connect import check_external, open_router
from argosy.controller.rewards.trial import try_prompts
from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.pool import PoolOptions
from argosy.reward.service import add_to_server
from argosy.roles.reward import Reward
from argosy.rpc.gate import Gate
from argosy.rpc.options import RpcOptions
from argosy.rpc.retry import RetryPolicy
from argosy.rpc.server import RpcServer
from argosy.types.errors import ConfigError
from argosy.types.ids import GroupId
from argosy.types.records import Failed, Outcome, Prompt, RewardCapabilities, Scored, ScoreRequest, ScoreResult

NO_NAMESPACES = "programs can't be isolated here: user.max_user_namespaces is 0"
ADD = {"inputs": ["1 2"], "outputs": ["3"]}


def prompt(place: int, source: str, truth: Any = "42", **extra: Any) -> Prompt:
    return Prompt(GroupId(0, place), (5, 6), source, truth, extra, "Why?")


async def tried(core: Reward, *prompts: Prompt) -> None:
    gate = Gate("reward")
    server = RpcServer.listen("127.0.0.1", 0, gate=gate)
    await server.start()
    await server.serve(add_to_server(core, server.server, gate))
    config = Config().with_values({"argosy.reward.services": {"rules": {"address": server.address}}})
    try:
        await check_external(config, RpcOptions())
        async with open_router(config, RpcOptions(), RetryPolicy(max_attempts=2)) as router:
            await try_prompts(router, prompts)
    finally:
        await server.stop(0)


async def refusal(core: Reward, *prompts: Prompt) -> str:
    with pytest.raises(ConfigError) as caught:
        await tried(core, *prompts)
    return caught.value.message


async def test_g11_the_built_in_rules_are_tried_with_the_rows_of_the_data() -> None:
    scorers = RewardScorers(RewardOptions(PoolOptions(worker_count=1, timeout_s=60)))
    try:
        await tried(scorers, prompt(0, "openai/gsm8k"), prompt(1, "apps", ADD), prompt(2, "openai/gsm8k", None))
        message = await refusal(
            scorers,
            prompt(0, "openai/gsm8k", None),
            prompt(1, "openai/gsm8k", None),
            prompt(2, "apps", ADD),
            prompt(3, "apps", ADD, language="cpp"),
            prompt(4, "reasoning_gym_scorer/number_sorting", "1", task="number_sorting"),
        )
    finally:
        scorers.shutdown()
    gsm8k, cpp, sorting = message.splitlines()
    assert "'rules' can't judge samples of data source 'openai/gsm8k': each of 2 rows" in gsm8k
    assert "bad_ground_truth" in gsm8k
    assert "'apps' with code in cpp: a row that was tried failed, language_unavailable" in cpp
    assert "'reasoning_gym_scorer/number_sorting'" in sorting
    assert "refused" in sorting or "not_installed" in sorting


class Judge:
    """Says what it was made to say."""

    def __init__(self, outcome: Outcome, sources: tuple[str, ...] = ("apps",), **capabilities: Any) -> None:
        self._outcome, self._known = outcome, RewardCapabilities(sources, **capabilities)
        self.seen: list[ScoreRequest] = []

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        self.seen += items
        return [ScoreResult(item.sample_id, self._outcome) for item in items]

    async def capabilities(self) -> RewardCapabilities:
        return self._known


async def test_g11_code_that_nothing_isolates_is_said_at_the_start() -> None:
    message = await refusal(Judge(Failed("sandbox_unavailable", NO_NAMESPACES)), prompt(0, "apps", ADD))
    assert NO_NAMESPACES in message
    assert "apps" in message


async def test_what_a_repeat_may_mend_does_not_end_a_run() -> None:
    await tried(Judge(Failed("overloaded", "later")), prompt(0, "apps", ADD))


@pytest.mark.parametrize("known", [{"sources": ("*",)}, {"repeat_forbidden": True}])
async def test_services_that_take_anything_or_count_calls_are_not_tried(known: dict[str, Any]) -> None:
    judge = Judge(Failed("bad_ground_truth", "no"), **known)
    await tried(judge, prompt(0, "apps", ADD))
    assert judge.seen == []


async def test_no_more_than_a_few_of_each_kind_are_tried() -> None:
    judge = Judge(Scored(0.0))
    await tried(judge, *(prompt(place, "apps", ADD) for place in range(50)))
    assert len(judge.seen) == 4
