"""argosy.openai.*: the OpenAI-compatible endpoint, over the real engine and the real client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.prepare import make_folder
from argosy.types.errors import ConfigError, StateError
from support.openai_endpoint import Served, served
from unit.config.effects.support import problems

ASK = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "ignore_eos": True}


@asynccontextmanager
async def up(job: Config, **values: Any) -> AsyncIterator[Served]:
    """An endpoint of the job with sessions, groups of two, and these keys."""
    base = {"argosy.openai.enable": True, "argosy.openai.source": "sessions", "data.max_response_length": 40}
    config = job.with_values(base | values)
    assert problems(config) == ""
    make_folder(job.run_folder)
    async with served(config, job.run_folder) as endpoint:
        yield endpoint


def opened(job: Config, key: str, value: Any, **more: Any) -> AbstractAsyncContextManager[Served]:
    return up(job, **({key: value} | more))


async def ask(endpoint: Served, session: str = "", status: int = 200, **fields: Any) -> Any:
    headers = {"x-argosy-session": session} if session else {}
    answer = await endpoint.http("POST", "/v1/chat/completions", ASK | fields, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


async def reward(endpoint: Served, session: str) -> int:
    return (await endpoint.http("POST", f"/v1/sessions/{session}/reward", {"reward": 1})).status_code


async def test_enable(job: Config) -> None:
    """Without it nothing listens; sessions need it."""
    off = job.with_values({"argosy.openai.enable": False, "argosy.openai.source": "sessions"})
    assert "no session could begin" in problems(off)
    async with opened(job, "argosy.openai.enable", True) as endpoint:
        assert (job.run_folder / "openai.json").exists()
        await ask(endpoint)
    assert not (job.run_folder / "openai.json").exists()
    colocated = job.with_values({"argosy.openai.enable": True, "argosy.colocated": True})
    assert "servers that sleep" in problems(colocated)
    for other in ({"argosy.rollout_only": True}, {"argosy.replay.path": "somewhere"}):
        assert "leave one of them out" in problems(job.with_values({"argosy.openai.enable": True} | other))


async def test_source(job: Config) -> None:
    """ "dataset" serves, and takes no sessions."""
    async with opened(job, "argosy.openai.source", "dataset") as endpoint:
        await ask(endpoint)
        assert "argosy.openai.source=sessions" in (await ask(endpoint, "s", 400))["error"]["message"]
        assert (await endpoint.http("POST", "/v1/tasks/next")).status_code == 400
    assert not job.with_values({"argosy.openai.source": "dataset"}).argosy.streams
    async with opened(job, "argosy.openai.source", "sessions") as endpoint:
        await ask(endpoint, "s")
        assert endpoint.ctx.config.argosy.streams
    needy = job.with_values({
        "argosy.openai.enable": True, "argosy.openai.source": "sessions", "algorithm.adv_estimator": "remax",
    })  # fmt: skip
    assert "greedy answer" in problems(needy)


async def test_host(job: Config) -> None:
    async with opened(job, "argosy.openai.host", "127.0.0.2") as endpoint:
        assert endpoint.address.startswith("http://127.0.0.2:")
        await ask(endpoint)
    outside = job.with_values({"argosy.openai.host": "0.0.0.0"})
    assert "allow_remote_hosts" in problems(outside)
    assert "api_key_env" in problems(outside.with_values({"argosy.allow_remote_hosts": True}))


async def test_port(job: Config) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        with pytest.raises(StateError, match="another port"):
            async with opened(job, "argosy.openai.port", port):
                pass
    async with opened(job, "argosy.openai.port", port) as endpoint:
        assert endpoint.address.endswith(f":{port}")


async def test_api_key_env(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="KEY_OF_AGENTS is not set"):
        async with opened(job, "argosy.openai.api_key_env", "KEY_OF_AGENTS"):
            pass
    monkeypatch.setenv("KEY_OF_AGENTS", "abc")
    async with opened(job, "argosy.openai.api_key_env", "KEY_OF_AGENTS") as endpoint:
        await ask(endpoint, status=401)


async def test_model_name(job: Config) -> None:
    async with opened(job, "argosy.openai.model_name", "policy") as endpoint:
        await ask(endpoint, status=404)
        assert (await ask(endpoint, model="policy"))["model"] == "policy"


async def test_sampling(job: Config) -> None:
    async with opened(job, "argosy.openai.sampling", "strict") as endpoint:
        await ask(endpoint, "s", 400, temperature=0.5)
        await ask(endpoint, temperature=0.5)
        assert endpoint.rollout.requests[-1].params.temperature == 0.5, "what isn't trained may be as it likes"
    async with opened(job, "argosy.openai.sampling", "run") as endpoint:
        await ask(endpoint, "s", temperature=0.5)
        assert endpoint.rollout.requests[-1].params.temperature == 1.0


async def test_train_branch(job: Config) -> None:
    """A long conversation, and then a short one that forgets it."""
    for rule, count in (("last", 2), ("longest", 6)):
        async with opened(job, "argosy.openai.train_branch", rule) as endpoint:
            for session in ("one", "two"):
                await ask(endpoint, session, max_tokens=6)
                other = [{"role": "user", "content": "y"}]
                await ask(endpoint, session, messages=other, max_tokens=2)
                assert await reward(endpoint, session) == 200
            [group] = endpoint.gate.finished
            assert [sum(row.mask) for row in group.completions.values()] == [count, count]


async def test_min_rewarded(job: Config) -> None:
    for least, groups in ((0, 0), (1, 1)):
        async with opened(job, "argosy.openai.min_rewarded", least) as endpoint:
            await ask(endpoint, "one")
            await ask(endpoint, "two")
            await endpoint.http("DELETE", "/v1/sessions/two")
            assert await reward(endpoint, "one") == (200 if least else 410)
            assert len(endpoint.gate.finished) == groups
    assert "more than" in problems(job.with_values({"argosy.openai.min_rewarded": 3}))


async def test_session_timeout_s(job: Config) -> None:
    async with opened(job, "argosy.openai.session_timeout_s", 0.2) as endpoint:
        await ask(endpoint, "one")

        async def dropped() -> bool:
            return bool(endpoint.gate.given_up)

        await endpoint.until(dropped)


async def test_max_sessions(job: Config) -> None:
    async with opened(job, "argosy.openai.max_sessions", 1) as endpoint:
        await ask(endpoint, "one")
        await ask(endpoint, "two", 429)


async def test_max_calls(job: Config) -> None:
    async with opened(job, "argosy.openai.max_calls", 1) as endpoint:
        await ask(endpoint, "one")
        await ask(endpoint, "one", 400)


async def test_max_concurrency(job: Config) -> None:
    async with opened(job, "argosy.openai.max_concurrency", 1) as endpoint:
        answers = await asyncio.gather(
            *(endpoint.http("POST", "/v1/chat/completions", ASK | {"max_tokens": 30}) for _ in range(2))
        )
        assert sorted(answer.status_code for answer in answers) == [200, 429]


async def test_max_body_mb(job: Config) -> None:
    async with opened(job, "argosy.openai.max_body_mb", 1) as endpoint:
        await ask(endpoint, status=413, user="x" * (1 << 20))
    async with opened(job, "argosy.openai.max_body_mb", 2) as endpoint:
        await ask(endpoint, user="x" * (1 << 20))


async def test_deadline_s(job: Config) -> None:
    """Of a call that waits for admission, and of one that takes too long."""
    async with opened(job, "argosy.openai.deadline_s", 0.2) as endpoint:
        endpoint.gate.open(0)
        assert (await ask(endpoint, "one", 429))["error"]["code"] == "not_admitted"
    async with opened(job, "argosy.openai.deadline_s", 0.005) as endpoint:
        assert (await ask(endpoint, "", 504, max_tokens=30))["error"]["code"] == "deadline_exceeded"
