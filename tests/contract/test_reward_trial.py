"""What no service can judge here ends a run at its start, with the service's own words (cases A8, G11)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.rewards.connect import check_external, open_router
from argosy.controller.rewards.trial import try_prompts
from argosy.reward.build import build_core
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
from support.model_server import Fault, model_server

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


async def tried_here(values: dict[str, Any], *prompts: Prompt) -> None:
    """The one reward service that a configuration asks for, in this process."""
    config = Config().with_values({"argosy.reward.worker_count": 1, **values})
    core = build_core(config)
    try:
        async with open_router(config, RpcOptions(), RetryPolicy(max_attempts=2), cores={"default": core}) as router:
            await try_prompts(router, prompts, max_error_rate=config.argosy.reward.max_error_rate)
    finally:
        await core.close()


def function(folder: Path, body: str) -> dict[str, Any]:
    """A function of one's own, which notes each answer that it is given."""
    head = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    note = f"    open({str(folder / 'asked')!r}, 'a').write(repr((data_source, solution_str)) + chr(10))\n"
    (folder / "reward.py").write_text(f"{head}{note}    {body}\n")
    return {"custom_reward_function.path": str(folder / "reward.py")}


async def test_g11_a_function_that_fails_whatever_it_gets_ends_the_run_at_its_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        await tried_here(function(tmp_path, "return missing"), *(prompt(place, "mine") for place in range(9)))
    assert "'default' can't judge samples of data source 'mine': each of 8 made-up answers failed" in str(caught.value)
    assert "name 'missing' is not defined" in str(caught.value)


@pytest.mark.parametrize("body", [
    "return 0.0", "return None",
    "return float(solution_str.split('<answer>')[1].split('</answer>')[0] == ground_truth)",
    "return 1 / (data_source == 'mine' and extra_info['row'] == 3)",
])  # fmt: skip
async def test_a_function_that_judges_one_made_up_answer_is_let_be(tmp_path: Path, body: str) -> None:
    """It may insist on a form of the answer, or fail for a row."""
    await tried_here(function(tmp_path, body), *(prompt(place, "mine", row=place) for place in range(4)))


async def test_a_function_is_asked_once_for_each_kind(tmp_path: Path) -> None:
    await tried_here(function(tmp_path, "return 0.5"), *(prompt(place, f"s{place % 2}") for place in range(8)))
    assert sorted(line.split("'")[1] for line in (tmp_path / "asked").read_text().splitlines()) == ["s0", "s1"]


async def test_a_run_that_bears_all_failures_is_only_warned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await tried_here(function(tmp_path, "1 / 0") | {"argosy.reward.max_error_rate": 1.0}, prompt(0, "mine"))
    assert "ZeroDivisionError" in caplog.text
    assert "it may do without" in caplog.text


KINDS = {
    "judge": {"argosy.reward.judge.endpoint.url": "URL/v1", "argosy.reward.judge.endpoint.model": "big"},
    "http": {"argosy.reward.server.url": "URL"},
}


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_g11_a_key_that_a_server_refuses_is_said_at_the_start(kind: str) -> None:
    with model_server() as server:
        server.faults = [Fault(401, {}, b"no such key")] * 100
        values = {key: value.replace("URL", server.url) for key, value in KINDS[kind].items()}
        with pytest.raises(ConfigError, match="no such key"):
            await tried_here({"argosy.reward.kind": kind, **values}, prompt(0, "a"), prompt(1, "b"))


async def test_a_judge_is_asked_once_in_all_and_may_come_up_later(caplog: pytest.LogCaptureFixture) -> None:
    with model_server() as server:
        values: dict[str, Any] = {key: value.replace("URL", server.url) for key, value in KINDS["judge"].items()}
        values |= {"argosy.reward.kind": "judge", "argosy.reward.judge.endpoint.attempts": 1}
        await tried_here(values, *(prompt(place, f"s{place}") for place in range(5)))
        assert len(server.requests) == 1
        server.faults = [Fault(503, {}, b"loading")] * 100
        await tried_here(values, prompt(0, "s"))
    assert "did not judge a made-up answer at the start, unavailable" in caplog.text
