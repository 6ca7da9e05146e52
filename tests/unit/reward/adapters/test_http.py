"""kind=http against a real HTTP server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from argosy.config import Config
from argosy.reward.adapters.http import HttpCore
from argosy.reward.build import build_core
from argosy.types.errors import ConfigError, OverloadedError
from argosy.types.ids import SampleId
from argosy.types.records import Abstained, Failed, Outcome, Scored, ScoreRequest
from support.model_server import Fault, ModelServer, model_server

SECTION = "argosy.reward"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """Scores the length of each response."""
    with model_server() as made:
        monkeypatch.setattr(
            made, "answer", lambda path, body: {"results": [{"score": len(one["response"])} for one in body["items"]]}
        )
        yield made


class Asking:
    """Makes cores, asks them, closes them."""

    def __init__(self) -> None:
        self.cores: list[HttpCore] = []

    def core(self, server: ModelServer, **values: Any) -> HttpCore:
        settings = {f"{SECTION}.{name.replace('__', '.')}": value for name, value in values.items()}
        config = Config().with_values({
            f"{SECTION}.kind": "http", f"{SECTION}.server.url": server.url, f"{SECTION}.server.attempts": 2, **settings
        })  # fmt: skip
        core = build_core(config)
        assert isinstance(core, HttpCore)
        self.cores.append(core)
        return core

    async def ask(self, server: ModelServer, *responses: str, deadline_s: float = 10, **values: Any) -> list[Outcome]:
        results = await self.core(server, **values).score(items(*responses), deadline_s=deadline_s)
        return [result.outcome for result in results]


@pytest.fixture
async def asking() -> AsyncIterator[Asking]:
    made = Asking()
    yield made
    for core in made.cores:
        await core.close()


def items(*responses: str) -> list[ScoreRequest]:
    message = {"role": "user", "content": "Why?"}
    return [
        ScoreRequest(
            SampleId(0, place, 1), "toy", "<user>Why?", response, {"a": 1}, {"deep": {"er": 7}}, (1, 2), (3,),
            messages=(message,),
        )
        for place, response in enumerate(responses)
    ]  # fmt: skip


async def test_a_batch_is_one_call_of_the_documented_shape(server: ModelServer, asking: Asking) -> None:
    assert await asking.ask(server, "a", "bbb") == [Scored(1.0), Scored(3.0)]
    [(path, body)] = server.requests
    assert path == "/score"
    assert body["items"][1] == {
        "sample_id": "e0-p1-k1-a0", "data_source": "toy", "prompt": "<user>Why?", "response": "bbb",
        "ground_truth": {"a": 1}, "extra_info": {"deep": {"er": 7}},
    }  # fmt: skip


async def test_path_batch_and_size(server: ModelServer, asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await asking.ask(server, *"abcde", http__max_batch_size=2, http__path="/v2/grade") == [Scored(1.0)] * 5
    assert sorted((path, len(body["items"])) for path, body in server.requests) == [
        ("/v2/grade", 1), ("/v2/grade", 2), ("/v2/grade", 2),
    ]  # fmt: skip
    monkeypatch.setattr(server, "answer", lambda path, body: {"score": body["response"] == "b", "acc": True})
    found = await asking.ask(server, "a", "b", http__batch=False)
    assert found == [Scored(0.0, {"acc": True}), Scored(1.0, {"acc": True})]


async def test_names_are_mapped(server: ModelServer, asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(path: str, body: dict[str, Any]) -> Any:
        return {"data": {"all": [{"out": {"reward": 0.5, "tone": "kind"}, "parts": {"acc": True}}]}}

    monkeypatch.setattr(server, "answer", answer)
    wanted = {
        "text": "response", "er": "extra_info.deep.er", "ids": "response_ids", "chat": "messages", "no": "extra_info.x",
    }  # fmt: skip
    values: dict[str, Any] = {
        "http__request": wanted, "http__constants": {"model": "grader-2"}, "http__items_key": "samples",
        "http__results_key": "data.all", "http__score_key": "out.reward",
    }  # fmt: skip
    assert await asking.ask(server, "yes", **values) == [Scored(0.5, {"tone": "kind", "acc": True})]
    [(_, body)] = server.requests
    chat = [{"role": "user", "content": "Why?"}]
    assert body == {"model": "grader-2", "samples": [{"text": "yes", "er": 7, "ids": [3], "chat": chat, "no": None}]}
    known = await asking.cores[0].capabilities()
    assert (known.needs_messages, known.needs_token_ids, known.data_sources) == (True, True, ("*",))
    with pytest.raises(ConfigError, match=r"argosy\.reward\.http\.request\.text: got 'answer', wants one of sample_id"):
        asking.core(server, http__request={"text": "answer"})


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (0, Scored(0.0)),  # F11: zero is a score
        (0.25, Scored(0.25)),
        ({"score": True}, Scored(1.0)),
        ({"score": None}, Abstained('URL returned "score": None')),
        (None, Abstained("URL returned None")),
        ({"abstained": "no truth"}, Abstained("no truth")),
        ({"failed": "timeout", "message": "slow"}, Failed("timeout", "slow")),
        ({"failed": "", "score": 2}, Scored(2.0, {"failed": ""})),
        ({"score": 1, "abstained": None, "failed": None}, Scored(1.0)),
        ({"score": 0, "abstained": ""}, Scored(0.0, {"abstained": ""})),
        ({"score": 0, "abstained": False}, Scored(0.0, {"abstained": False})),
        ({"score": 1, "abstained": True}, Abstained("True")),
    ],
)
async def test_what_a_result_means(
    server: ModelServer, asking: Asking, monkeypatch: pytest.MonkeyPatch, result: Any, expected: Outcome
) -> None:
    monkeypatch.setattr(server, "answer", lambda path, body: {"results": [result]})
    [found] = await asking.ask(server, "x")
    if isinstance(expected, Abstained):
        expected = Abstained(expected.reason.replace("URL", f"{server.url}/score"))
    assert found == expected


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"results": [{"score": "1"}]}, "the str '1'"),
        ({"results": [{"score": float("nan")}]}, "must be finite"),
        ({"results": [{"reward": 1}]}, "no 'score' (there is: 'reward')"),
        ({"results": [[1.0]]}, "a list of 1"),
        ({"results": []}, "0 results for 1 samples"),
        ({"results": [1, 2]}, "2 results for 1 samples"),
        ({"results": {"0": 1}}, "dict for 1 samples"),
        ({"scores": [1]}, "no 'results' (there is: 'scores')"),
    ],
)
async def test_g2_what_is_no_score_is_failed(
    server: ModelServer, asking: Asking, monkeypatch: pytest.MonkeyPatch, answer: Any, said: str
) -> None:
    monkeypatch.setattr(server, "answer", lambda path, body: answer)
    [found] = await asking.ask(server, "x")
    assert isinstance(found, Failed)
    assert found.reason == "bad_return"
    assert said in found.message


async def test_g11_trouble_is_repeated_and_then_failed(server: ModelServer, asking: Asking) -> None:
    server.faults = [Fault(503)]
    assert await asking.ask(server, "x") == [Scored(1.0)]
    for faults, reason in (
        ([Fault(500)] * 2, "unavailable"),
        ([Fault(429)] * 2, "rate_limited"),
        ([Fault(drop=True)] * 2, "unavailable"),
        ([Fault(404, body=b"no such path")], "refused"),
        ([Fault(200, body=b"<html>")], "bad_return"),
    ):
        server.faults = list(faults)
        [found] = await asking.ask(server, "x")
        assert isinstance(found, Failed)
        assert found.reason == reason
        assert server.faults == []


async def test_timeouts_and_concurrency_are_bounded(server: ModelServer, asking: Asking) -> None:
    server.delay_s = 0.05
    await asking.ask(server, *"abcdefgh", server__concurrency=3, http__max_batch_size=1)
    assert server.most_running == 3
    server.faults = [Fault(hang_s=5)]
    [found] = await asking.ask(server, "x", server__timeout_s=0.2, server__attempts=1)
    assert isinstance(found, Failed)
    assert found.reason == "timeout"


async def test_a_rate_is_kept(server: ModelServer, asking: Asking) -> None:
    """Five seconds' worth goes at once, the rest as it comes."""
    await asking.ask(server, *("x" * 53), server__requests_per_minute=600, http__max_batch_size=1)
    assert server.times[-1] - server.times[0] >= 0.25


async def test_where_repeating_is_forbidden_nothing_is_sent_twice(server: ModelServer, asking: Asking) -> None:
    server.faults = [Fault(503)] * 2
    [found] = await asking.ask(server, "x", server__repeat_forbidden=True)
    assert isinstance(found, Failed)
    assert len(server.requests) == 1
    assert (await asking.cores[0].capabilities()).repeat_forbidden


async def test_the_key_is_sent_and_never_shown(
    server: ModelServer, asking: Asking, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("GRADER_KEY", "sk-very-secret")
    server.faults = [Fault(401, body=b"sk-very-secret is not valid")]
    [found] = await asking.ask(server, "x", server__api_key_env="GRADER_KEY")
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret"
    assert isinstance(found, Failed)
    assert "sk-very-secret" not in found.message + caplog.text + repr(await asking.cores[0].capabilities())
    with pytest.raises(ConfigError, match="NO_SUCH_KEY is not set"):
        asking.core(server, server__api_key_env="NO_SUCH_KEY")


async def test_a_url_is_needed_and_sources_are_as_configured(server: ModelServer, asking: Asking) -> None:
    with pytest.raises(ConfigError, match=r"argosy\.reward\.server\.url: got null with argosy\.reward\.kind=http"):
        asking.core(server, server__url=None)
    core = asking.core(server, server__data_sources=["essays/*"])
    assert (await core.capabilities()).data_sources == ("essays/*",)


async def test_what_waits_is_bounded(server: ModelServer, asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argosy.reward.adapters.base.MAX_WAITING", 2)
    core = asking.core(server)
    with pytest.raises(OverloadedError, match="no room for 3 more"):
        await core.score(items("a", "b", "c"), deadline_s=10)
    for _ in range(2):  # what was judged waits no longer
        assert len(await core.score(items("a", "b"), deadline_s=10)) == 2
