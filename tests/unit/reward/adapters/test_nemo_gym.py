"""kind=nemo_gym against a small resources server of our own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from argosy.config import Config
from argosy.reward.adapters.nemo_gym import NemoGymCore
from argosy.reward.build import build_core
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Outcome, Scored, ScoreRequest
from support.gym_server import GymServer, gym_server


@pytest.fixture
def gym() -> Iterator[GymServer]:
    with gym_server() as made:
        yield made


@asynccontextmanager
async def core(gym: GymServer, rate: float = 0, **values: Any) -> AsyncIterator[NemoGymCore]:
    config = Config().with_values({
        "argosy.reward.kind": "nemo_gym", "argosy.reward.server.url": gym.url, "argosy.reward.server.attempts": 1,
        "argosy.reward.server.requests_per_minute": rate,
        **{f"argosy.reward.nemo_gym.{name}": value for name, value in values.items()},
    })  # fmt: skip
    made = build_core(config)
    assert isinstance(made, NemoGymCore)
    yield made
    await made.close()


async def ask(gym: GymServer, *responses: str, row: Mapping[str, Any] | None = None, **values: Any) -> list[Outcome]:
    message = {"role": "user", "content": "6 × 7?"}
    items = [
        ScoreRequest(
            SampleId(0, place, 0), "toy", "<user>6 × 7?", response, "42", {"nemo_gym": row or {}}, messages=(message,)
        )
        for place, response in enumerate(responses)
    ]
    async with core(gym, **values) as made:
        assert (await made.capabilities()).needs_messages
        return [result.outcome for result in await made.score(items, deadline_s=10)]


async def test_answers_are_verified(gym: GymServer) -> None:
    assert await ask(gym, "It is 42", "It is 41") == [Scored(1.0), Scored(0.0)]
    body = gym.bodies[0]
    assert body["responses_create_params"] == {"input": [{"role": "user", "content": "6 × 7?"}]}
    assert gym.sessions == ["", ""], "no session was asked for"


async def test_what_the_row_says_is_in_the_request_and_wins(gym: GymServer) -> None:
    row = {"expected_answer": "7", "verifier_metadata": {"factor": 0.5}}
    assert await ask(gym, "seven is 7", row=row) == [Scored(0.5)]


async def test_ground_truth_key_and_path(gym: GymServer) -> None:
    [failed] = await ask(gym, "42", ground_truth_key="label")
    assert isinstance(failed, Failed)
    assert failed.reason == "refused", "the server wants expected_answer"
    assert "expected_answer" in failed.message
    assert gym.bodies[0]["label"] == "42"
    assert await ask(gym, "42", path="/math/verify") == [Scored(1.0)]
    await ask(gym, "42", ground_truth_key="")
    assert "expected_answer" not in gym.bodies[-1]


async def test_each_sample_has_a_session_of_its_own(gym: GymServer) -> None:
    assert await ask(gym, "42", "42", "42", seed_session=True) == [Scored(1.0)] * 3
    assert sorted(gym.sessions) == sorted(gym.seeded) == ["s0", "s1", "s2"]
    assert all("response" not in body and body["expected_answer"] == "42" for body in gym.seeded.values())


async def test_sessions_share_the_rate_limit(gym: GymServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six calls at 10 a second, of which one may go at once: half a second. Each session with its own: none."""
    monkeypatch.setattr("argosy.reward.models.limits._BURST_S", 0.1)
    started = time.monotonic()
    assert await ask(gym, "42", "42", "42", seed_session=True, rate=600) == [Scored(1.0)] * 3
    assert time.monotonic() - started > 0.4
    assert len(set(gym.sessions)) == 3


async def test_g11_who_gets_no_turn_within_its_deadline_is_failed(gym: GymServer) -> None:
    async with core(gym, seed_session=True) as made:
        made._slots = asyncio.Semaphore(0)
        item = ScoreRequest(SampleId(0, 0, 0), "toy", "6 × 7?", "42", "42")
        started = time.monotonic()
        [found] = await made.score([item], deadline_s=0.05)
        assert time.monotonic() - started < 2
    assert isinstance(found.outcome, Failed)
    assert found.outcome.reason == "timeout"


async def test_components_and_numbers_become_parts(gym: GymServer) -> None:
    gym.extra = {"reward_components": {"format": 0.5}, "tool_calls": 3, "note": "not a number"}
    assert await ask(gym, "42") == [Scored(1.0, {"tool_calls": 3.0, "reward_components/format": 0.5})]


async def test_g11_a_sample_that_the_environment_masks_is_failed_never_zero(gym: GymServer) -> None:
    gym.extra = {"reward": 0.0, "mask_sample": True, "failure_kind": "judge_unavailable"}
    [found] = await ask(gym, "42")
    assert isinstance(found, Failed)
    assert found.reason == "masked"
    assert "judge_unavailable" in found.message


@pytest.mark.parametrize("reward", ["1", None, [1.0], float("nan")])
async def test_g2_a_reward_that_is_no_number_is_no_score(gym: GymServer, reward: Any) -> None:
    gym.extra = {"reward": reward}
    [found] = await ask(gym, "42")
    assert not isinstance(found, Scored)
