"""kind=verifiers against a small environment server of our own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from argosy.config import Config
from argosy.reward.adapters.replay import ReplayEndpoint
from argosy.reward.adapters.verifiers import VerifiersCore
from argosy.reward.build import build_core
from argosy.types.errors import ConfigError
from argosy.types.ids import SampleId
from argosy.types.records import Failed, Outcome, Scored, ScoreRequest
from support.environment_server import EnvironmentServer, environment_server


@pytest.fixture
def server() -> Iterator[EnvironmentServer]:
    with environment_server() as made:
        yield made


async def ask(server: EnvironmentServer, *responses: str, deadline_s: float = 20, **values: Any) -> list[Outcome]:
    settings = {f"argosy.reward.{name.replace('__', '.')}": value for name, value in values.items()}
    core = build_core(
        Config().with_values({"argosy.reward.kind": "verifiers", "argosy.reward.server.url": server.url, **settings})
    )
    assert isinstance(core, VerifiersCore)
    message = {"role": "user", "content": "6 × 7?"}
    items = [
        ScoreRequest(SampleId(0, place, 0), "sums", "", text, "42", {"info": {"hard": True}}, messages=(message,))
        for place, text in enumerate(responses)
    ]
    try:
        return [result.outcome for result in await core.score(items, deadline_s=deadline_s)]
    finally:
        await core.close()


async def test_the_policys_answer_is_what_the_environment_scores(server: EnvironmentServer) -> None:
    assert await ask(server, "It is 42.", "No.") == [
        Scored(1.0, {"contains": 1.0, "length": 9.0}), Scored(0.0, {"contains": 0.0, "length": 3.0}),
    ]  # fmt: skip
    by_example = {request["input"]["example_id"]: request["input"] for request in server.requests}
    assert by_example[1] == {
        "prompt": [{"role": "user", "content": "6 × 7?"}], "answer": "42", "info": {"hard": True}, "example_id": 1,
    }  # fmt: skip


async def test_older_servers_want_a_task(server: EnvironmentServer) -> None:
    await ask(server, "42", verifiers__task="arithmetic")
    assert server.requests[0]["input"]["task"] == "arithmetic"


async def test_g11_an_environment_of_several_turns_is_failed_never_zero(server: EnvironmentServer) -> None:
    server.turns = 2
    [found] = await ask(server, "42")
    assert isinstance(found, Failed)
    assert found.reason == "environment"
    assert "an environment of several turns needs more" in found.message


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"success": False, "error": "KeyError: 'answer'"}, "environment"),
        ({"success": True, "output": None}, "environment"),
        ({"success": True, "output": {"reward": 1.0, "metrics": {}}}, "environment"),  # whose answer was that?
        ([1.0], "bad_return"),
    ],
)
async def test_g11_what_the_server_does_wrong_is_failed(server: EnvironmentServer, answer: Any, reason: str) -> None:
    server.answer = answer
    [found] = await ask(server, "42")
    assert isinstance(found, Failed)
    assert found.reason == reason


async def test_silence_is_failed_and_not_repeated(server: EnvironmentServer) -> None:
    """A rollout can't be called off: a second one would run beside the first."""
    server.silent = 1
    [found] = await ask(server, "42", server__timeout_s=0.2, server__attempts=3)
    assert isinstance(found, Failed)
    assert found.reason == "timeout"
    assert len(server.requests) == 1


async def test_g11_a_connection_that_is_lost_fails_what_waits_and_is_made_anew(server: EnvironmentServer) -> None:
    core = build_core(Config().with_values({"argosy.reward.kind": "verifiers", "argosy.reward.server.url": server.url}))
    assert isinstance(core, VerifiersCore)
    item = ScoreRequest(SampleId(0, 0, 0), "sums", "", "42", "42", messages=({"role": "user", "content": "6 × 7?"},))
    try:
        server.silent = 1
        scoring = asyncio.ensure_future(core.score([item], deadline_s=20))
        while not server.requests:  # noqa: ASYNC110 -- the server is in another thread
            await asyncio.sleep(0.01)
        assert core._context is not None
        core._context.destroy(linger=0)
        [lost] = await scoring
        assert isinstance(lost.outcome, Failed)
        assert lost.outcome.reason == "unavailable"
        [found] = await core.score([item], deadline_s=20)
        assert isinstance(found.outcome, Scored)
    finally:
        await core.close()


async def test_concurrency_is_bounded(server: EnvironmentServer) -> None:
    server.delay_s = 0.05
    await ask(server, *["42"] * 8, server__concurrency=3)
    assert server.most_running == 3


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "tcp://127.0.0.1", "127.0.0.1:1"])
def test_the_url_must_be_one_of_zeromq(url: str) -> None:
    with pytest.raises(ConfigError, match=r"wants tcp://host:port"):
        build_core(Config().with_values({"argosy.reward.kind": "verifiers", "argosy.reward.server.url": url}))


async def test_the_replay_endpoint_gives_an_answer_to_its_own_name_only() -> None:
    endpoint = ReplayEndpoint()
    await endpoint.start()
    name = endpoint.offer("four", whole=False)
    body = {"model": name, "messages": [{"role": "user", "content": "2+2?"}]}
    async with httpx.AsyncClient(base_url=endpoint.url) as client:
        for _ in range(2):  # the same question again, as after a lost connection
            answer = await client.post("/chat/completions", json=body)
            choice = answer.json()["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("four", "length")
        assert (await client.post("/chat/completions", json={**body, "messages": []})).status_code == 409
        assert (await client.post("/chat/completions", json={**body, "model": "gpt"})).status_code == 404
        assert (await client.post("/embeddings", json=body)).status_code == 404
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/models")
    assert endpoint.withdraw(name)
    assert not endpoint.withdraw(endpoint.offer("five", whole=True))
    await endpoint.close()
