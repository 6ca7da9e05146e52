"""Queue, priority, memory, overlong prompts, status and large messages of the rollout service, in both forms."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from argosy.api.rollout.v1 import generate_pb2
from argosy.rpc.clients.rollout import RolloutClient
from argosy.rpc.codec.rollout import params_from_pb, params_to_pb, sample_request_from_pb, sample_request_to_pb
from argosy.types.errors import InvalidInputError, MessageTooLargeError, OverloadedError
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import (
    Completion,
    FinishReason,
    Generated,
    GenerateRequest,
    SamplingParams,
    TokenRun,
    VersionRun,
)
from contract.forms import DEADLINE_S, Form, MakeRollout, collect, mutation, request, until

SIZES = [4_194_303, 4_194_305, 20_000_000]
"""Bytes of case F1."""


async def ends(rollout: Any, requests: Sequence[GenerateRequest]) -> list[Completion]:
    """Completions in the order in which they end."""
    return [completion async for completion in rollout.generate(requests, deadline_s=DEADLINE_S)]


# --- the queue -------------------------------------------------------------------------------------------------------


async def test_a_full_queue_says_when_to_come_again(form: Form, make_rollout: MakeRollout) -> None:
    """Ten samples have ended so far: three too many come again when three more will have, at that rate."""
    core = make_rollout(slot_count=1, max_waiting=4)
    rollout = await form.rollout(core)
    for position in range(10):
        await collect(rollout, [request(position, max_tokens=2)])
    await asyncio.sleep(0.2)
    with pytest.raises(
        OverloadedError, match=r"8 samples don't fit: 0 are in flight, and 1 may run and 4 wait"
    ) as full:
        await collect(rollout, [request(position) for position in range(8)])
    per_second = core._ended_rate.note(core._ended_count)
    assert full.value.retry_after_s == pytest.approx(3 / per_second, rel=0.5)
    assert (await rollout.status()).refused_sample_count == 8
    assert len(await collect(rollout, [request(position) for position in range(5)])) == 5


async def test_samples_with_more_priority_go_first(form: Form, make_rollout: MakeRollout) -> None:
    core = make_rollout(slot_count=1)
    order: list[str] = []
    admit = core.engine.loop.scheduler.admit

    def noted(*arguments: Any) -> Any:
        admitted = admit(*arguments)
        order.extend(f"{sample.request.purpose}{sample.request.sample_id.position}" for sample in admitted)
        return admitted

    core.engine.loop.scheduler.admit = noted
    rollout = await form.rollout(core)
    await rollout.pause("keep", mutation())
    plain = [request(position) for position in range(3)]
    urgent = [GenerateRequest(r.sample_id, r.prompt_ids, r.params, "val", priority=2) for r in plain]
    late = [GenerateRequest(r.sample_id, r.prompt_ids, r.params, "warmup", priority=-1) for r in plain]
    tasks = []
    for count, requests in enumerate((plain, late, urgent), start=1):
        tasks.append(asyncio.create_task(ends(rollout, requests)))
        await until(rollout, lambda status, count=count: status.waiting_count == 3 * count)  # type: ignore[misc]
    await rollout.resume(mutation())
    await asyncio.gather(*tasks)
    assert order == [f"{purpose}{position}" for purpose in ("val", "train", "warmup") for position in range(3)]


async def test_priority_changes_no_token(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    [plain] = await ends(rollout, [request(0)])
    one = request(0)
    [urgent] = await ends(rollout, [GenerateRequest(one.sample_id, one.prompt_ids, one.params, priority=7)])
    assert (urgent.token_ids, urgent.log_probs) == (plain.token_ids, plain.log_probs)


@pytest.mark.parametrize("priority", [1001, -1001, 1 << 40, 0.5])
async def test_a_priority_that_is_none_is_refused(form: Form, rollout_core: Any, priority: Any) -> None:
    rollout, one = await form.rollout(rollout_core), request(0)
    with pytest.raises(InvalidInputError, match="priority"):
        await ends(rollout, [GenerateRequest(one.sample_id, one.prompt_ids, one.params, priority=priority)])
    assert len(await ends(rollout, [one])) == 1


async def test_samples_wait_for_memory_not_only_for_slots(form: Form, make_rollout: MakeRollout) -> None:
    """Each may come to need 5 + 20 tokens: two of them fit into 60, whatever slots are free."""
    rollout = await form.rollout(make_rollout(slot_count=8, kv_token_count=60, max_model_len=60))
    task = asyncio.create_task(ends(rollout, [request(position, max_tokens=20) for position in range(6)]))
    most = 0
    while not task.done():
        status = await rollout.status()
        most = max(most, status.running_count)
        assert status.kv_used_tokens <= status.kv_total_tokens == 60
        await asyncio.sleep(0)
    assert len(task.result()) == 6
    assert most == 2


# --- prompts beyond the context --------------------------------------------------------------------------------------


async def test_an_overlong_prompt_is_flagged_and_its_batch_goes_on(form: Form, make_rollout: MakeRollout) -> None:
    rollout = await form.rollout(make_rollout(max_model_len=16))
    lengths = {0: 15, 1: 16, 2: 400}
    asked = [request(position, prompt=(5,) * (length - 1)) for position, length in lengths.items()]
    found = {completion.sample_id.position: completion for completion in await ends(rollout, asked)}
    assert [found[position].overlong_prompt for position in lengths] == [False, True, True]
    assert (found[0].finish_reason, len(found[0].token_ids)) == (FinishReason.LENGTH, 1)
    assert "the prompt has 400 tokens, and the server's context holds 16" in found[2].error
    assert (found[2].finish_reason, found[2].token_ids, found[2].versions) == (FinishReason.LENGTH, (), ())
    assert (await rollout.status()).overlong_prompt_count == 2
    assert len(await ends(rollout, asked)) == 3  # their keys are free again


async def test_an_overlong_prompt_with_nonsense_in_it_is_refused(form: Form, make_rollout: MakeRollout) -> None:
    rollout = await form.rollout(make_rollout(max_model_len=16))
    with pytest.raises(InvalidInputError, match="prompt_ids holds -3"):
        await ends(rollout, [request(0, prompt=(-3,) * 40)])


# --- what the status tells -------------------------------------------------------------------------------------------


async def test_the_status_tells_load_cache_hits_and_capabilities(form: Form, make_rollout: MakeRollout) -> None:
    """Four samples of one prompt of 5 tokens: 4 of them go into the cache, once."""
    core = make_rollout(max_model_len=64)
    rollout = await form.rollout(core)
    await rollout.status()
    group = [
        GenerateRequest(SampleId(0, 0, k), (1, 40, 41, 42, 50), SamplingParams(16, ignore_eos=True)) for k in range(4)
    ]
    await ends(rollout, group)
    status = await rollout.status()
    assert (status.prompt_token_count, status.prompt_cached_token_count) == (16, 12)
    assert status.tokens_per_second > 0
    assert (status.kv_used_tokens, status.kv_total_tokens) == (0, 8 * 64)
    assert status.engine == "hf"
    assert status.capabilities.items() >= core.engine.capabilities.as_texts().items()
    assert (status.capabilities["log_probs"], status.capabilities["sample_seeds"]) == ("processed", "true")


async def test_a_warm_up_leaves_no_trace(
    form: Form, make_rollout: MakeRollout, caplog: pytest.LogCaptureFixture
) -> None:
    cold, warm = make_rollout(), make_rollout()
    with caplog.at_level("INFO", logger="argosy.rollout"):
        await warm.start()
    assert "is warm: the first tokens took" in caplog.text
    rollout = await form.rollout(warm)
    assert await rollout.status() == await cold.status()
    assert [one.token_ids for one in await ends(rollout, [request(0)])] == [
        one.token_ids for one in await ends(cold, [request(0)])
    ]


async def test_a_warm_up_serves_no_stale_weights(form: Form, make_rollout: MakeRollout) -> None:
    core = make_rollout(start_stale=True)
    await core.start()
    status = await (await form.rollout(core)).status()
    assert (status.state, status.version, status.generated_token_count) == ("stale", None, 0)


async def test_a_transport_that_the_engine_lacks_is_refused(
    form: Form, rollout_core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    poorer = replace(rollout_core.engine.capabilities, transports=frozenset({"stream", "disk"}))
    monkeypatch.setattr(type(rollout_core.engine), "capabilities", poorer)
    rollout = await form.rollout(rollout_core)
    with pytest.raises(InvalidInputError, match="the engine hf takes weights by disk, stream, not by collective"):
        await rollout.init_weight_transfer("collective", mutation())
    await rollout.init_weight_transfer("stream", mutation())


# --- case F1 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", SIZES)
async def test_f1_large_prompts_and_texts_pass(grpc_form: Form, make_rollout: MakeRollout, size_bytes: int) -> None:
    """Up: a prompt of that many bytes, in one stream item. Down: a text of that many."""
    core = make_rollout(max_model_len=64)
    client = await grpc_form.rollout(core)
    [flagged] = await ends(client, [request(0, prompt=(5,) * (size_bytes // 4))])
    assert f"the prompt has {size_bytes // 4 + 1} tokens" in flagged.error
    core.engine.loop._decode = lambda ids: "x" * size_bytes
    [completion] = await ends(client, [request(1)])
    assert len(completion.text) == size_bytes


async def test_f1_a_message_over_the_limit_is_told_with_the_limit(grpc_form: Form, rollout_core: Any) -> None:
    client = await grpc_form.rollout(rollout_core)
    with pytest.raises(MessageTooLargeError, match="67108864"):
        await ends(client, [request(0, prompt=(5,) * (68 << 18))])
    assert len(await ends(client, [request(1)])) == 1
    rollout_core.engine.loop._decode = lambda ids: "x" * (68 << 20)
    with pytest.raises(MessageTooLargeError, match="67108864"):
        await ends(client, [request(2)])


# --- case F11 --------------------------------------------------------------------------------------------------------


def test_f11_set_zeros_of_a_sample_request_stay_and_unset_ones_have_the_default() -> None:
    params = SamplingParams(8, temperature=0.0, top_k=0, top_p=0.0, min_p=0.0, min_tokens=0, seed=0)
    assert params_from_pb(params_to_pb(params)) == params
    assert params_from_pb(generate_pb2.SamplingParams(max_tokens=8)) == SamplingParams(8)
    sample = GenerateRequest(SampleId(0, 0, 0), (1,), params)
    message = sample_request_to_pb(sample)
    assert sample_request_from_pb(message) == sample
    # A client from before there were priorities, and a server from before: the field is 0, or not looked at.
    message.ClearField("priority")
    assert sample_request_from_pb(message).priority == 0
    old = generate_pb2.SampleKey.FromString(message.key.SerializeToString())
    assert old == message.key


@pytest.mark.parametrize("field", ["temperature", "top_k", "min_p", "min_tokens", "seed"])
async def test_f11_an_old_client_that_sets_only_max_tokens_gets_the_defaults(
    grpc_form: Form, rollout_core: Any, field: str
) -> None:
    """By hand, as another language would write it: unset means the documented default, zero means zero."""
    client = await grpc_form.rollout(rollout_core)
    assert isinstance(client, RolloutClient)
    unset = await _by_hand(client, generate_pb2.SamplingParams(max_tokens=8), 0)
    explicit = generate_pb2.SamplingParams(max_tokens=8)
    setattr(explicit, field, getattr(SamplingParams(8), field))
    assert await _by_hand(client, explicit, 0) == unset
    zero = generate_pb2.SamplingParams(max_tokens=8)
    setattr(zero, field, 0)
    found = await _by_hand(client, zero, 0)
    assert (found == unset) == (field != "temperature")  # 0 is the default, or off, of all but the temperature


@pytest.mark.parametrize("params", [generate_pb2.SamplingParams(), generate_pb2.SamplingParams(max_tokens=0)])
async def test_f11_max_tokens_zero_or_unset_is_refused(
    grpc_form: Form, rollout_core: Any, params: generate_pb2.SamplingParams
) -> None:
    client = await grpc_form.rollout(rollout_core)
    assert isinstance(client, RolloutClient)
    assert "max_tokens" in await _by_hand(client, params, 0)


async def _by_hand(client: RolloutClient, params: generate_pb2.SamplingParams, position: int) -> Any:
    """Token ids of one sample that is asked for without our codec; the message of a refusal."""
    sample = sample_request_to_pb(request(position))
    sample.params.CopyFrom(params)
    call = client._stub.Generate()
    await call.write(generate_pb2.GenerateRequest(add=generate_pb2.AddSamples(samples=[sample])))
    await call.done_writing()
    found = b""
    async for response in call:
        if response.refused:
            return response.refused[0].message
        found += b"".join(run.tokens.token_ids for run in response.runs)
    return found


# --- case C3 ---------------------------------------------------------------------------------------------------------


async def test_c3_a_conversation_goes_on_after_exactly_the_sampled_ids(form: Form, make_rollout: MakeRollout) -> None:
    """Ids [he, llo] and [hello] read alike. What was sampled stays: in the completion, and in the next turn."""
    he, llo, hello = 104, 105, 106
    core = make_rollout()
    names = {he: "he", llo: "llo", hello: "hello"}
    core.engine.loop._decode = lambda ids: "".join(names.get(token, "·") for token in ids)
    rollout = await form.rollout(core)
    version = VersionRun(PolicyVersion("main", 0, "x"), 2)
    first = GenerateRequest(
        SampleId(0, 0, 0), (1, 40, 41), SamplingParams(8, ignore_eos=True),
        generated=Generated((he, llo), (-0.5, -0.25), (version,)),
    )  # fmt: skip
    [answer] = await ends(rollout, [first])
    assert (answer.token_ids[:2], answer.log_probs[:2]) == ((he, llo), (-0.5, -0.25))
    assert answer.text.startswith("hello")
    assert len(answer.token_ids) == len(answer.log_probs) == 8

    tool_message = (60, 61)
    turn = GenerateRequest(
        SampleId(0, 0, 1), (*first.prompt_ids, *answer.token_ids, *tool_message), SamplingParams(4, temperature=0.0)
    )
    [then] = await ends(rollout, [turn])
    merged = (*first.prompt_ids, hello, *answer.token_ids[2:], *tool_message)
    [other] = await ends(rollout, [GenerateRequest(SampleId(0, 0, 2), merged, SamplingParams(4, temperature=0.0))])
    assert then.log_probs != other.log_probs  # the engine saw the ids, not the text


async def test_c3_runs_of_a_stream_are_the_sampled_ids(rollout_core: Any) -> None:
    told: list[int] = []
    async for event in rollout_core.generate_runs([request(0)], deadline_s=DEADLINE_S, interval_tokens=1):
        if isinstance(event, TokenRun):
            told.extend(event.token_ids)
        else:
            assert tuple(told) == event.token_ids[: len(told)]
