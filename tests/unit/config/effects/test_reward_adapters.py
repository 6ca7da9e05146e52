"""`argosy.reward.server`, `.http`, `.nemo_gym` and `.verifiers`: what somebody else's server is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from argosy.config import Config
from argosy.reward.build import build_core
from argosy.types.errors import ConfigError
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Outcome, Scored, ScoreRequest
from support.environment_server import environment_server
from support.gym_server import gym_server
from support.model_server import Fault, ModelServer, model_server
from unit.config.effects.support import problems

ITEMS = [ScoreRequest(SampleId(0, 0, k), "toy", "Why?", "It is 42", "42", {"nemo_gym": {}}) for k in range(4)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """Scores 1, whatever names the sample has."""

    def answer(path: str, body: dict[str, Any]) -> Any:
        samples = body.get("items", body.get("samples"))
        return {"score": 1, "deep": 2} if samples is None else {"results": [{"score": 1, "deep": 2}] * len(samples)}

    with model_server() as made:
        monkeypatch.setattr(made, "answer", answer)
        yield made


async def ask(url: str | None, values: dict[str, Any], kind: str = "http") -> list[Outcome]:
    """What a core of that configuration says about four samples."""
    base = {"argosy.reward.kind": kind, "argosy.reward.server.url": url, "argosy.reward.server.attempts": 1}
    core = build_core(Config().with_values(base | values))
    try:
        return [result.outcome for result in await core.score(ITEMS, deadline_s=10)]
    finally:
        await core.close()


def reasons(outcomes: list[Outcome]) -> set[str]:
    return {outcome.reason for outcome in outcomes if isinstance(outcome, Failed)}


async def test_url(server: ModelServer) -> None:
    await ask(None, {"argosy.reward.server.url": server.url})
    assert len(server.requests) == 1
    with pytest.raises(ConfigError, match=r"argosy\.reward\.server\.url: got null"):
        await ask(None, {})


async def test_api_key_env(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADER_KEY", "secret")
    await ask(server.url, {"argosy.reward.server.api_key_env": "GRADER_KEY"})
    assert server.headers[0]["authorization"] == "Bearer secret"


async def test_concurrency_and_batch(server: ModelServer) -> None:
    server.delay_s = 0.05
    await ask(server.url, {"argosy.reward.http.batch": False, "argosy.reward.server.concurrency": 2})
    assert (len(server.requests), server.most_running) == (4, 2)
    assert "argosy.reward.server.concurrency: got 0" in problems(
        Config().with_values({"argosy.reward.server.concurrency": 0})
    )


async def test_requests_per_minute(server: ModelServer) -> None:
    """Five seconds' worth, 50, goes at once; the rest as it comes."""
    values = {"argosy.reward.http.batch": False, "argosy.reward.server.requests_per_minute": 600.0}
    core = build_core(
        Config().with_values({"argosy.reward.kind": "http", "argosy.reward.server.url": server.url, **values})
    )
    many = [ScoreRequest(SampleId(0, 0, k), "toy", "", "", None) for k in range(53)]
    await core.score(many, deadline_s=10)
    await core.close()
    assert server.times[-1] - server.times[0] >= 0.25


async def test_timeout_and_attempts(server: ModelServer) -> None:
    server.faults = [Fault(hang_s=2)]
    assert reasons(await ask(server.url, {"argosy.reward.server.timeout_s": 0.2})) == {"timeout"}
    server.faults = [Fault(503)]
    assert reasons(await ask(server.url, {})) == {"unavailable"}
    server.faults = [Fault(503)]
    assert reasons(await ask(server.url, {"argosy.reward.server.attempts": 2})) == set()


async def test_repeat_forbidden(server: ModelServer) -> None:
    server.faults = [Fault(503)]
    values = {"argosy.reward.server.attempts": 4, "argosy.reward.server.repeat_forbidden": True}
    assert reasons(await ask(server.url, values)) == {"unavailable"}


async def test_data_sources(server: ModelServer) -> None:
    core = build_core(
        Config().with_values({
            "argosy.reward.kind": "http", "argosy.reward.server.url": server.url,
            "argosy.reward.server.data_sources": ["essays/*"],
        })
    )  # fmt: skip
    assert (await core.capabilities()).data_sources == ("essays/*",)
    await core.close()


async def test_shape(server: ModelServer) -> None:
    await ask(server.url, {"argosy.reward.http.path": "/grade", "argosy.reward.http.max_batch_size": 3})
    assert sorted((path, len(body["items"])) for path, body in server.requests) == [("/grade", 1), ("/grade", 3)]
    await ask(server.url, {
        "argosy.reward.http.request": {"text": "response"}, "argosy.reward.http.constants": {"model": "m"},
        "argosy.reward.http.items_key": "samples",
    })  # fmt: skip
    assert server.requests[-1][1] == {"model": "m", "samples": [{"text": "It is 42"}] * 4}
    assert await ask(server.url, {"argosy.reward.http.score_key": "deep"}) == [Scored(2.0)] * 4
    assert reasons(await ask(server.url, {"argosy.reward.http.results_key": "data.results"})) == {"bad_return"}


async def test_nemo_gym() -> None:
    with gym_server() as gym:
        assert await ask(gym.url, {"argosy.reward.nemo_gym.path": "/x/verify"}, "nemo_gym") == [Scored(1.0)] * 4
        assert set(gym.sessions) == {""}
        await ask(gym.url, {"argosy.reward.nemo_gym.seed_session": True}, "nemo_gym")
        assert len(gym.seeded) == 4
        values = {"argosy.reward.nemo_gym.ground_truth_key": "label"}
        assert reasons(await ask(gym.url, values, "nemo_gym")) == {"refused"}
        assert gym.bodies[-1]["label"] == "42"


async def test_verifiers() -> None:
    with environment_server() as server:
        await ask(server.url, {"argosy.reward.verifiers.task": "sums"}, "verifiers")
        assert {request["input"]["task"] for request in server.requests} == {"sums"}
