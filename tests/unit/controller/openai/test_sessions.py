"""Sessions: exact tokens over turns, branches, rewards exactly once, groups, and clients that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError

from argosy.types.records import FinishReason
from support.openai_endpoint import Served
from unit.controller.openai.conftest import Serve

Messages = list[Any]


async def begin(up: Served, group: str = "g", **body: Any) -> dict[str, Any]:
    answer = await up.http("POST", "/v1/sessions", {"group": group} | body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def say(client: AsyncOpenAI, messages: Messages, **fields: Any) -> Any:
    """One turn; the answer is added to the messages, as agent frameworks do it."""
    asked: dict[str, Any] = {"model": "m", "messages": messages, "max_tokens": 10, "logprobs": True}
    reply = await client.chat.completions.create(**(asked | fields))
    messages.append(reply.choices[0].message.model_dump())
    return reply


async def reward(up: Served, session_id: str, value: float, **fields: Any) -> Any:
    return await up.http("POST", f"/v1/sessions/{session_id}/reward", {"reward": value} | fields)


def forward_log_probs(folder: str, prompt: tuple[int, ...], response: tuple[int, ...]) -> list[float]:
    """Of each response token, by one plain forward pass of the model over the whole sequence."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0]  # [T, V]
    log_probs = torch.log_softmax(logits, -1)
    return [float(log_probs[len(prompt) + i - 1, token]) for i, token in enumerate(response)]


async def test_c3_three_turns_have_exactly_the_sampled_tokens(serve: Serve) -> None:
    """What is trained is what was sampled: ids and log-probs of every turn, and the template's tokens between, masked.
    A random byte model says what is no valid text, so encoding its answers again would give other ids."""
    up: Served = await serve()
    model = up.ctx.config.actor_rollout_ref.model.path
    sessions = [await begin(up), await begin(up)]
    for session in sessions:
        client, messages = up.client(session["base_url"]), [{"role": "user", "content": "count"}]
        replies = []
        for turn in range(3):
            replies.append(await say(client, messages))
            messages.append({"role": "user", "content": f"more {turn}"})
        session["replies"] = replies
    assert (await reward(up, sessions[0]["id"], 1.0)).json()["state"] == "rewarded"
    assert not up.gate.finished, "the group has another session"
    assert (await reward(up, sessions[1]["id"], 0.5, parts={"acc": 1.0})).status_code == 200
    [group] = up.gate.finished
    assert group.prompt.token_ids == up.tokenizer.encode_prompt([{"role": "user", "content": "count"}])
    for k, session in enumerate(sessions):
        sample = sorted(group.completions)[k]
        asked = [request for request in up.rollout.requests if request.sample_id == sample]
        sampled = [one for one in up.rollout.completions if one.sample_id == sample]
        row = group.completions[sample]
        assert row.token_ids == sampled[-1].token_ids, "the last turn's answer has all of them"
        assert row.mask == tuple(
            int(any(len(a.generated.token_ids) <= i < len(c.token_ids) for a, c in zip(asked, sampled, strict=True)))
            for i in range(len(row.token_ids))
        )
        masked = [log_prob for log_prob, kept in zip(row.log_probs, row.mask, strict=True) if not kept]
        assert set(masked) == {0.0}
        told = [t.logprob for reply in session["replies"] for t in reply.choices[0].logprobs.content]
        assert [p for p, kept in zip(row.log_probs, row.mask, strict=True) if kept] == pytest.approx(told)
        between = up.tokenizer.decode(row.token_ids, skip_special_tokens=False)
        assert between.count("<|im_start|>user\nmore") == 2
        assert row.turn_count == 3
        trained = [i for i, kept in enumerate(row.mask) if kept]
        recomputed = forward_log_probs(model, group.prompt.token_ids, row.token_ids)
        assert [recomputed[i] for i in trained] == pytest.approx([row.log_probs[i] for i in trained], abs=2e-4)
        assert sum(run.token_count for run in row.versions) == len(row.token_ids)
    assert [group.outcomes[sample] for sample in sorted(group.outcomes)] == [
        group.completions[sample].outcome for sample in sorted(group.outcomes)
    ]
    assert up.state_of(sample) == "scored"


async def test_an_edited_history_is_a_branch(serve: Serve) -> None:
    """Going back to the first answer keeps that answer's tokens; rewriting it begins anew. The last one is trained."""
    up: Served = await serve()
    session, other = await begin(up), await begin(up)
    client, messages = up.client(session["base_url"]), [{"role": "user", "content": "a"}]
    first = await say(client, messages)
    kept = list(messages)
    await say(client, [*messages, {"role": "user", "content": "b"}])
    await say(client, [*kept, {"role": "user", "content": "c"}])
    last = up.rollout.requests[-1]
    assert (last.purpose, last.sample_id.attempt) == ("branch", 1)
    assert last.generated.token_ids[:10] == up.rollout.completions[0].token_ids[:10], "the first answer's own tokens"
    rewritten = [kept[0], {"role": "assistant", "content": "something else"}, {"role": "user", "content": "d"}]
    await say(client, rewritten)
    assert up.rollout.requests[-1].generated.token_ids == ()
    shown = (await up.http("GET", f"/v1/sessions/{session['id']}")).json()
    assert (shown["calls"], shown["branches"]) == (4, 3)
    await say(up.client(other["base_url"]), [{"role": "user", "content": "a"}])
    for one in (session, other):
        await reward(up, one["id"], 1.0)
    [group] = up.gate.finished
    row = group.completions[sorted(group.completions)[0]]
    prompt = up.tokenizer.encode_prompt(rewritten[:3])
    assert (*group.prompt.token_ids, *row.token_ids)[: len(prompt)] == prompt, "the conversation that was answered last"
    assert sum(row.mask) == len(up.rollout.completions[3].token_ids)
    assert up.ctx.counters["openai/untrained_branch_tokens"] == sum(
        len(first.choices[0].logprobs.content) * 2 for _ in range(1)
    ) + sum(
        len(one.token_ids) - len(asked.generated.token_ids)
        for one, asked in list(zip(up.rollout.completions, up.rollout.requests, strict=True))[1:3]
    )
    assert row.sample_id.attempt == 0


async def test_sessions_that_begin_differently_share_what_is_common(serve: Serve) -> None:
    """A date in the system prompt: what the group's prompts share is its prompt, the rest is masked in front."""
    up: Served = await serve()
    asked = []
    for day in ("Monday", "Friday"):
        session = await begin(up)
        messages: Messages = [{"role": "system", "content": f"It is {day}."}, {"role": "user", "content": "hi"}]
        asked.append(up.tokenizer.encode_prompt(messages))
        await say(up.client(session["base_url"]), messages)
        await reward(up, session["id"], 1.0)
    [group] = up.gate.finished
    assert group.prompt.text.endswith("It is ")
    for sample, ids in zip(sorted(group.completions), asked, strict=True):
        row = group.completions[sample]
        own = len(ids) - len(group.prompt.token_ids)
        assert (*group.prompt.token_ids, *row.token_ids)[: len(ids)] == ids
        assert row.mask[:own] == (0,) * own
        assert all(row.mask[own:])


async def test_tool_calls_come_as_openai_has_them(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the policy writes in its format is parsed; the tool's answer goes on from the very tokens."""
    up: Served = await serve({"argosy.agents.tool_prompt": "system"})
    said = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    ids = up.tokenizer.encode_rendered(said + "<|im_end|>")
    real = up.rollout.stage.generate_one

    async def scripted(request: Any, **fields: Any) -> Any:
        completion = await real(request, **fields)
        if request.generated.token_ids:
            return completion
        import dataclasses

        run = dataclasses.replace(completion.versions[0], token_count=len(ids))
        return dataclasses.replace(
            completion, token_ids=ids, log_probs=(-0.5,) * len(ids), versions=(run,), finish_reason=FinishReason.STOP
        )

    monkeypatch.setattr(up.rollout.stage, "generate_one", scripted)
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    session = await begin(up)
    client, messages = up.client(session["base_url"]), [{"role": "user", "content": "1 + 1?"}]
    reply = await say(client, messages, tools=[tool])
    [choice] = reply.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 1}')
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "2"})
    await say(client, messages, tools=[tool])
    assert "Tools:" in up.tokenizer.decode(up.rollout.requests[0].prompt_ids), "the model knows of them"
    follow = up.rollout.requests[-1]
    assert follow.generated.token_ids[: len(ids)] == ids
    after = up.tokenizer.decode(follow.generated.token_ids[len(ids) :], skip_special_tokens=False)
    assert after == "\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n"
    streamed = [
        event
        async for event in await up.client().chat.completions.create(
            model="m", messages=[{"role": "user", "content": "1 + 1?"}], tools=[tool], stream=True
        )
    ]
    calls = [c for event in streamed for choice in event.choices for c in choice.delta.tool_calls or []]
    assert [(one.index, one.function and one.function.name) for one in calls] == [(0, "add")]


async def test_tools_that_the_template_leaves_out_are_refused(serve: Serve) -> None:
    up: Served = await serve()
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    with pytest.raises(BadRequestError, match="tool_prompt=system"):
        await say(up.client(), [{"role": "user", "content": "1 + 1?"}], tools=[tool])
    await say(up.client(), [{"role": "user", "content": "1 + 1?"}], tools=[tool], tool_choice="none")


async def test_a_reward_counts_once(serve: Serve) -> None:
    up: Served = await serve()
    session = await begin(up)
    messages: Messages = [{"role": "user", "content": "x"}]
    assert (await reward(up, session["id"], 1.0)).status_code == 400, "nothing was said yet"
    await say(up.client(session["base_url"]), messages)
    for wrong in (
        {"reward": "high"},
        {"reward": True},
        {},
        {"reward": 1, "more": 2},
        {"reward": 1, "turn_rewards": [1, 2]},
    ):
        assert (await up.http("POST", f"/v1/sessions/{session['id']}/reward", wrong)).status_code == 400
    first = await reward(up, session["id"], 1.0, parts={"a": 1}, turn_rewards=[0.25])
    again = await reward(up, session["id"], 1.0, parts={"a": 1}, turn_rewards=[0.25])
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json()
    other = await reward(up, session["id"], 0.0)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "already_rewarded")
    assert up.ctx.counters["openai/rewarded_sessions"] == 1
    assert (await reward(up, "nobody", 1.0)).status_code == 404
    with pytest.raises(APIStatusError) as over:
        await say(up.client(session["base_url"]), messages)
    assert (over.value.status_code, over.value.code) == (410, "session_over")
    twin = await begin(up)
    await say(up.client(twin["base_url"]), [{"role": "user", "content": "x"}])
    await reward(up, twin["id"], 0.0)
    [group] = up.gate.finished
    row = group.completions[sorted(group.completions)[0]]
    assert row.turn_rewards == ((len(row.token_ids) - 1, 0.25),)
    assert (await reward(up, session["id"], 1.0, parts={"a": 1}, turn_rewards=[0.25])).status_code == 200


async def test_a_session_is_named_by_header_key_or_path(serve: Serve) -> None:
    """All ways reach one session; equal first messages are one task; two names at once are refused."""
    up: Served = await serve()
    messages: Messages = [{"role": "user", "content": "same start"}]
    header = {"X-Argosy-Session": "mine"}
    await say(up.client(default_headers=header), messages)
    await say(up.client(api_key="anything;session=mine"), [*messages, {"role": "user", "content": "2"}])
    await say(up.client(f"{up.address}/v1/sessions/twin/v1"), [{"role": "user", "content": "same start"}])
    assert [(request.sample_id.position, request.sample_id.k) for request in up.rollout.requests] == [
        (10**9, 0), (10**9, 0), (10**9, 1),
    ]  # fmt: skip
    with pytest.raises(BadRequestError, match="2 sessions"):
        await say(up.client(f"{up.address}/v1/sessions/twin/v1", default_headers=header), messages)
    with pytest.raises(BadRequestError, match="session id"):
        await say(up.client(api_key="k;session=no spaces please"), messages)


async def test_rows_of_the_data_set_are_handed_out(serve: Serve) -> None:
    up: Served = await serve()
    up.gate.open(2)
    seats = [(await up.http("POST", "/v1/tasks/next")).json() for _ in range(4)]
    assert [seat["sample_id"] for seat in seats] == [f"e0-p{p}-k{k}-a0" for p in (0, 1) for k in (0, 1)]
    assert seats[0]["task"]["messages"] == [{"role": "user", "content": "question 0"}]
    assert seats[0]["task"]["ground_truth"] == "letters"
    assert (await up.http("POST", "/v1/tasks/next?wait_s=0.1")).status_code == 204, "the gate is closed"
    assert (await up.http("POST", "/v1/sessions?wait_s=0.1", {"group": "own"})).status_code == 429
    for seat in seats[:2]:
        await say(up.client(seat["base_url"]), seat["task"]["messages"])
        await reward(up, seat["id"], 1.0)
    [group] = up.gate.finished
    assert (str(group.prompt.group), group.prompt.data_source, group.prompt.index) == ("e0-p0", "toy", 0)
    waiting = asyncio.create_task(up.http("POST", "/v1/tasks/next?wait_s=20"))
    await asyncio.sleep(0.1)
    up.gate.open(1)
    assert (await waiting).json()["sample_id"] == "e0-p2-k0-a0"


async def test_a_group_that_cannot_be_whole_is_dropped(serve: Serve) -> None:
    up: Served = await serve()
    session, twin = await begin(up), await begin(up)
    await say(up.client(session["base_url"]), [{"role": "user", "content": "x"}])
    await reward(up, session["id"], 1.0)
    assert (await up.http("DELETE", f"/v1/sessions/{twin['id']}")).json()["state"] == "ended"
    assert (await up.http("DELETE", f"/v1/sessions/{twin['id']}")).status_code == 200, "a repeat is answered alike"
    assert len(up.gate.given_up) == 1
    assert not up.gate.finished
    for one in (session, twin):
        assert up.state_of(one["sample_id"]) == "dropped agent session: its client gave it up"
    assert (await reward(up, twin["id"], 1.0)).status_code == 410
    assert not up.source._ready, "nobody may ever ask for that key again"
    assert (await begin(up))["sample_id"].startswith("e0-p1000000001-"), "the same key begins another task"


async def test_what_is_over_keeps_no_tokens(serve: Serve) -> None:
    """A session may be asked for long after it: how it stands, not what was said."""
    up: Served = await serve()
    session, twin = await begin(up), await begin(up)
    await say(up.client(session["base_url"]), [{"role": "user", "content": "x"}])
    await reward(up, session["id"], 1.0)
    [task] = up.source.open_tasks.values()
    assert task.sessions[0].branches
    await up.http("DELETE", f"/v1/sessions/{twin['id']}")
    assert [one.branches for one in task.sessions] == [{}, {}]
    assert (await up.http("GET", f"/v1/sessions/{session['id']}")).json()["reward"] == 1.0


async def test_enough_rewards_are_enough_where_the_run_says_so(serve: Serve) -> None:
    up: Served = await serve({"actor_rollout_ref.rollout.n": 3}, min_rewarded=2)
    seats = [await begin(up) for _ in range(3)]
    await up.http("DELETE", f"/v1/sessions/{seats[0]['id']}")
    for seat in seats[1:]:
        await say(up.client(seat["base_url"]), [{"role": "user", "content": "x"}])
        await reward(up, seat["id"], 1.0)
    [group] = up.gate.finished
    rows = [group.completions[sample] for sample in sorted(group.completions)]
    assert [len(row.token_ids) > 0 for row in rows] == [False, True, True]
    assert type(group.outcomes[rows[0].sample_id]).__name__ == "Abstained"


def given_up(up: Served, count: int) -> Callable[[], Awaitable[bool]]:
    async def enough() -> bool:
        return len(up.gate.given_up) == count

    return enough


async def test_what_nobody_uses_expires(serve: Serve) -> None:
    """A session without calls, and a task of which nobody takes the other session."""
    up: Served = await serve(session_timeout_s=0.4)
    session = await begin(up, "alone")
    await up.until(given_up(up, 1))
    assert "no call came for 0.4 s" in up.state_of(session["sample_id"])
    assert up.ctx.counters["openai/expired_sessions"] == 1
    lonely = await begin(up, "half")
    await say(up.client(lonely["base_url"]), [{"role": "user", "content": "x"}])
    await reward(up, lonely["id"], 1.0)
    await up.until(given_up(up, 2))
    assert "nobody took 1 of its 2 sessions" in up.state_of(lonely["sample_id"])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_its_sample(serve: Serve, stream: bool) -> None:
    """In the middle of a stream or of an answer; the session stays open, and goes on from what was answered before."""
    up: Served = await serve({"argosy.rollout.stream_interval_tokens": 2, "data.max_response_length": 2000,
                              "actor_rollout_ref.rollout.max_model_len": 1000})  # fmt: skip
    session = await begin(up)
    client, messages = up.client(session["base_url"]), [{"role": "user", "content": "x"}]
    asked: dict[str, Any] = {"model": "m", "messages": messages, "max_tokens": 900, "extra_body": {"ignore_eos": True}}
    if stream:
        events = await client.chat.completions.create(**asked, stream=True)
        async for event in events:
            if event.choices[0].delta.content:
                break
        assert (await up.core.status()).running_count == 1
        await events.close()
    else:
        call = asyncio.create_task(client.chat.completions.create(**asked))
        await up.until(up.is_running)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
    await up.until(up.is_idle)
    assert not up.rollout.completions, "it was not generated to its end"
    await say(client, messages)
    assert up.rollout.completions[0].finish_reason is FinishReason.LENGTH


async def test_a_dropped_group_ends_its_running_calls(serve: Serve) -> None:
    up: Served = await serve({"actor_rollout_ref.rollout.max_model_len": 1000, "data.max_response_length": 2000})
    session, twin = await begin(up), await begin(up)
    call = asyncio.create_task(
        say(up.client(session["base_url"]), [{"role": "user", "content": "x"}], max_tokens=900,
            extra_body={"ignore_eos": True})
    )  # fmt: skip
    await up.until(up.is_running)
    assert (await reward(up, session["id"], 1.0)).json()["error"]["code"] == "call_running"
    await up.http("DELETE", f"/v1/sessions/{twin['id']}")
    with pytest.raises(APIStatusError) as over:
        await call
    assert over.value.status_code == 410
    await up.until(up.is_idle)


async def test_what_is_trained_is_sampled_as_the_trainer_takes_it_for(serve: Serve) -> None:
    up: Served = await serve()
    session = await begin(up)
    client = up.client(session["base_url"])
    with pytest.raises(BadRequestError, match="sampling=run"):
        await say(client, [{"role": "user", "content": "x"}], temperature=0.2)
    await say(client, [{"role": "user", "content": "x"}], temperature=1.0)
    assert up.rollout.requests[-1].params.temperature == 1.0


async def test_the_runs_sampling_may_win(serve: Serve) -> None:
    up: Served = await serve(sampling="run")
    session = await begin(up)
    await say(up.client(session["base_url"]), [{"role": "user", "content": "x"}], temperature=0.2, top_p=0.5)
    assert (up.rollout.requests[-1].params.temperature, up.rollout.requests[-1].params.top_p) == (1.0, 1.0)


async def test_limits_of_sessions(serve: Serve) -> None:
    up: Served = await serve(max_sessions=2, max_calls=2)
    seats = [await begin(up, "a"), await begin(up, "a", id="named")]
    full = await up.http("POST", "/v1/sessions", {"group": "b"})
    assert (full.status_code, full.json()["error"]["code"]) == (429, "too_many_sessions")
    assert (await up.http("POST", "/v1/sessions", {"id": "named", "group": "b"})).status_code == 409
    client, messages = up.client(seats[0]["base_url"]), [{"role": "user", "content": "x"}]
    for _ in range(2):
        await say(client, messages)
        messages.append({"role": "user", "content": "y"})
    with pytest.raises(BadRequestError, match="max_calls=2"):
        await say(client, messages)
    long = [*messages, {"role": "user", "content": "z" * 600}]
    with pytest.raises(BadRequestError):
        await say(up.client(seats[1]["base_url"]), long)


async def test_a_conversation_that_fits_no_micro_batch_is_refused(serve: Serve) -> None:
    """Its row would fit no micro-batch, and end the run in the trainer."""
    up: Served = await serve({"actor_rollout_ref.rollout.max_model_len": 4096})
    client = up.client((await begin(up))["base_url"])
    with pytest.raises(BadRequestError, match="the context holds 512"):
        await say(client, [{"role": "user", "content": "z" * 600}])
    await say(client, [{"role": "user", "content": "z"}])


async def test_two_hundred_calls_side_by_side(serve: Serve) -> None:
    """Sessions of many tasks at once, all turns answered, every group whole and with its own tokens."""
    up: Served = await serve({"actor_rollout_ref.rollout.n": 4})
    client = up.client(max_retries=0)

    async def one(number: int) -> None:
        session = f"s{number}"
        messages: Messages = [{"role": "user", "content": f"task {number // 4}"}]
        asked: dict[str, Any] = {"extra_headers": {"X-Argosy-Session": session}, "max_tokens": 4}
        await say(client, messages, **asked)
        await say(client, [*messages, {"role": "user", "content": "and?"}], **asked)
        assert (await reward(up, session, number % 2)).status_code == 200

    async with asyncio.timeout(200):
        await asyncio.gather(*(one(number) for number in range(200)))
    assert len(up.gate.finished) == 50
    assert {len(group.completions) for group in up.gate.finished} == {4}
    for group in up.gate.finished:
        for row in group.completions.values():
            assert row.turn_count == 2
    assert not up.source.open_tasks


async def test_a_run_that_ends_tells_its_clients(serve: Serve) -> None:
    up: Served = await serve()
    up.gate.open(0)
    waiting = asyncio.create_task(up.http("POST", "/v1/tasks/next?wait_s=60"))
    await asyncio.sleep(0.1)
    up.running.cancel()
    answer = await waiting
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "run_over")
    assert (await up.http("POST", "/v1/tasks/next")).status_code == 410
