"""Chat completions through the real `openai` client, against the embedded engine itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import APIStatusError, AuthenticationError, BadRequestError, NotFoundError, RateLimitError

from support.openai_endpoint import Served
from unit.controller.openai.conftest import Serve

ASK: list[Any] = [{"role": "user", "content": "say something"}]
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a town.", "parameters": {"type": "object", "properties": {}}},
}


async def test_plain_answer_is_the_engines(serve: Serve) -> None:
    up: Served = await serve()
    reply = await up.client().chat.completions.create(
        model="whatever", messages=ASK, max_tokens=12, logprobs=True, extra_body={"return_token_ids": True}
    )
    [completion], [request] = up.rollout.completions, up.rollout.requests
    assert request.prompt_ids == up.tokenizer.encode_prompt(ASK)
    [choice] = reply.choices
    assert choice.message.content == up.tokenizer.decode(completion.token_ids)
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert [token.logprob for token in choice.logprobs.content or []] == pytest.approx(completion.log_probs)
    assert choice.model_extra == {"token_ids": list(completion.token_ids)}
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(request.prompt_ids), 12)


async def test_n_choices_differ_and_a_seed_repeats(serve: Serve) -> None:
    up: Served = await serve()
    client = up.client()
    reply = await client.chat.completions.create(model="m", messages=ASK, max_tokens=8, n=4)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in reply.choices}) == 4
    greedy = [
        (await client.chat.completions.create(model="m", messages=ASK, max_tokens=8, temperature=0)).choices[0]
        for _ in range(2)
    ]
    assert greedy[0].message.content == greedy[1].message.content


async def test_a_stream_says_what_the_answer_says(serve: Serve) -> None:
    up: Served = await serve({"argosy.rollout.stream_interval_tokens": 4})
    events = [
        event
        async for event in await up.client().chat.completions.create(
            model="m",
            messages=ASK,
            max_tokens=40,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    ]
    texts = ["", ""]
    for event in events:
        for choice in event.choices:
            texts[choice.index] += choice.delta.content or ""
    by_k = {one.sample_id.k: one for one in up.rollout.completions}
    assert texts == [up.tokenizer.decode(by_k[k].token_ids) for k in range(2)]
    assert len([event for event in events if event.choices and event.choices[0].delta.content]) > 4, (
        "it comes in pieces"
    )
    assert [choice.finish_reason for event in events for choice in event.choices if choice.finish_reason] == [
        "length"
    ] * 2
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == 80


async def test_stop_texts_end_answers_and_are_cut(serve: Serve) -> None:
    up: Served = await serve({"argosy.rollout.stream_interval_tokens": 3})
    client = up.client()
    asked: dict[str, Any] = {"model": "m", "messages": ASK, "max_tokens": 60, "temperature": 0}
    whole = (await client.chat.completions.create(**asked)).choices[0].message.content or ""
    stop = whole[20:22]
    cut = await client.chat.completions.create(**asked, stop=[stop])
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    pieces = [event async for event in await client.chat.completions.create(**asked, stop=stop, stream=True)]
    text = "".join(event.choices[0].delta.content or "" for event in pieces)
    assert text == whole[: whole.index(stop)]


@pytest.mark.parametrize(("asked", "param"), [
    ({"temperature": 3}, "temperature"), ({"top_logprobs": 2, "logprobs": True}, "top_logprobs"),
    ({"response_format": {"type": "json_object"}}, "response_format"), ({"n": 0}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"stop": [""]}, "stop"), ({"logit_bias": {"5": 1}}, "logit_bias"), ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"tools": [WEATHER], "tool_choice": "required"}, "tool_choice"), ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"), ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ({"extra_body": {"surprise": 1}}, "surprise"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
    ({"extra_body": {"top_k": 2**31}}, "top_k"), ({"extra_body": {"stop_token_ids": [2**31]}}, "stop_token_ids"),
    ({"extra_body": {"chat_template_kwargs": {"chat_template": "{% for i in range(9) %}x{% endfor %}"}}},
     "chat_template_kwargs"),
    ({"extra_body": {"chat_template_kwargs": {"messages": []}}}, "chat_template_kwargs"),
])  # fmt: skip
async def test_what_the_engines_cannot_do_is_refused_by_name(serve: Serve, asked: dict[str, Any], param: str) -> None:
    up: Served = await serve()
    with pytest.raises(BadRequestError) as refused:
        await up.client().chat.completions.create(**({"model": "m", "messages": ASK} | asked))
    assert refused.value.param == param
    assert not up.rollout.requests


async def test_other_errors_have_openais_shape(serve: Serve) -> None:
    up: Served = await serve(model_name="policy", max_body_mb=1)
    client = up.client()
    assert [model.id async for model in client.models.list()] == ["policy"]
    assert (await client.models.retrieve("policy")).id == "policy"
    with pytest.raises(NotFoundError, match="policy"):
        await client.chat.completions.create(model="gpt", messages=ASK)
    long: list[Any] = [{"role": "user", "content": "x" * 600}]
    with pytest.raises(BadRequestError) as refused:
        await client.chat.completions.create(model="policy", messages=long)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(APIStatusError) as refused_size:
        await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "x" * (1 << 20)}])
    assert refused_size.value.status_code == 413
    text = {"content-type": "text/plain"}
    assert (await up.http("POST", "/v1/chat/completions", headers=text)).status_code == 415
    broken = {"content-type": "application/json"}
    answer = await up.http("POST", "/v1/chat/completions", content=b'{"n": NaN}', headers=broken)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert (await up.http("GET", "/v1/nothing")).json()["error"]["code"] == "not_found"
    assert (await up.http("GET", "/health")).json()["status"] == "ok"


async def test_the_key_is_asked_for_and_never_told(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AGENT_KEY", "sesame-open")
    caplog.set_level("DEBUG")
    up: Served = await serve(api_key_env="AGENT_KEY")
    asked: dict[str, Any] = {"model": "m", "messages": ASK, "max_tokens": 2}
    for wrong in ("none", "sesame", "sesame-open;session"):
        with pytest.raises(AuthenticationError, match="api_key_env"):
            await up.client(api_key=wrong).chat.completions.create(**asked)
    assert not up.rollout.requests
    assert (await up.client(api_key="sesame-open").chat.completions.create(**asked)).choices
    await up.client(api_key="sesame-open;session=mine").chat.completions.create(**asked)
    assert up.rollout.requests[-1].purpose == "train"
    assert (await up.http("POST", "/v1/tasks/next")).status_code == 401
    assert (await up.http("GET", "/health")).status_code == 200
    assert "sesame-open" not in caplog.text


async def test_work_is_handed_out_to_who_posts_for_it(serve: Serve) -> None:
    """What a browser sends for an image or a link of a web page takes no task; 405 says what may be sent."""
    up: Served = await serve()
    for method in ("GET", "HEAD"):
        refused = await up.http(method, "/v1/tasks/next")
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert (await up.http("GET", "/v1/tasks/next")).json()["error"]["code"] == "method_not_allowed"
    assert up.gate.admitted == 0


@pytest.mark.parametrize(
    "sent", [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}]
)
async def test_a_web_page_may_not_call_without_a_key(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, sent: dict[str, str]
) -> None:
    """A page's script can POST without a body to where its reader's browser can; the browser says that it is a page."""
    up: Served = await serve()
    answer = await up.http("POST", "/v1/tasks/next", headers=sent)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site")
    assert up.gate.admitted == 0
    monkeypatch.setenv("AGENT_KEY", "sesame")
    keyed: Served = await serve(api_key_env="AGENT_KEY")
    allowed = await keyed.http("POST", "/v1/tasks/next", headers=sent | {"Authorization": "Bearer sesame"})
    assert allowed.status_code == 200, "whoever knows the key may call from where they like"


async def test_half_a_character_of_a_tokenizer_stops_nobody(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow tokenizer of a model's own code may give what no UTF-8 holds."""
    up: Served = await serve({"argosy.rollout.stream_interval_tokens": 2})
    monkeypatch.setattr(type(up.tokenizer), "decode", lambda self, ids, **_: "a\ud83d" * len(ids))
    client = up.client(default_headers={"X-Argosy-Session": "s"})
    asked: dict[str, Any] = {"model": "m", "messages": ASK, "max_tokens": 6, "extra_body": {"ignore_eos": True}}
    reply = await client.chat.completions.create(**asked, logprobs=True)
    assert reply.choices[0].message.content == "a\ufffd" * 6
    pieces = [event async for event in await up.client().chat.completions.create(**asked, stream=True)]
    assert "".join(event.choices[0].delta.content or "" for event in pieces) == "a\ufffd" * 6


async def test_too_many_calls_at_once_are_told_to_come_again(serve: Serve) -> None:
    up: Served = await serve({"argosy.rollout.slot_count": 1}, max_concurrency=3)
    client = up.client()
    asked: dict[str, Any] = {"model": "m", "messages": ASK, "max_tokens": 200, "extra_body": {"ignore_eos": True}}
    answers = await asyncio.gather(*(client.chat.completions.create(**asked) for _ in range(6)), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, RateLimitError)]
    assert len(refused) == 3
    assert refused[0].response.headers["retry-after"] == "1"
    assert up.ctx.counters["openai/calls"] == 6
    streams = await asyncio.gather(
        *(client.chat.completions.create(**asked, stream=True) for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(one, RateLimitError) for one in streams) == 2
