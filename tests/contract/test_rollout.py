"""The rollout role, in process and over gRPC."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from dataclasses import replace
from typing import Any

import pytest

from argosy.types.errors import DeadlineError, InvalidInputError, OverloadedError, StateError
from argosy.types.ids import PolicyVersion
from argosy.types.records import Completion, FinishReason, Generated, TokenRun
from contract.forms import DEADLINE_S, Form, MakeRollout, collect, mutation, request, until


def numbers(completion: Completion) -> dict[str, Any]:
    """All that must be the same both ways (who answered, and what was cached, may differ)."""
    return {
        field: getattr(completion, field)
        for field in ("sample_id", "purpose", "token_ids", "versions", "finish_reason", "text", "error")
    }


async def test_tokens_are_the_same_and_log_probs_agree(form: Form, rollout_core: Any) -> None:
    requests = [request(position, k) for position in range(3) for k in range(4)]
    direct = await collect(rollout_core, requests)
    found = await collect(await form.rollout(rollout_core), requests)
    for key, completion in direct.items():
        assert numbers(found[key]) == numbers(completion)
        assert found[key].log_probs == pytest.approx(completion.log_probs, abs=1e-6)
        assert len(completion.token_ids) == len(completion.log_probs) == 12
        assert sum(run.token_count for run in completion.versions) == 12
    assert len({completion.token_ids for completion in found.values()}) == 12


async def test_answers_are_matched_by_id_whatever_the_order(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    requests = [request(position, max_tokens=1 + 7 * position % 11) for position in range(10)]
    expected = await collect(rollout, requests)
    random.Random(3).shuffle(requests)
    found = await collect(rollout, requests)
    assert {key: c.token_ids for key, c in found.items()} == {key: c.token_ids for key, c in expected.items()}
    assert [len(found[one.key].token_ids) for one in requests] == [one.params.max_tokens for one in requests]


async def test_purposes_are_kept_apart(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    found = await collect(rollout, [request(0), request(0, purpose="val")])
    assert found["train:e0-p0-k0-a0"].token_ids != found["val:e0-p0-k0-a0"].token_ids


async def test_nothing_asked_nothing_answered(form: Form, rollout_core: Any) -> None:
    assert await collect(await form.rollout(rollout_core), []) == {}


async def test_many_calls_at_once(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    calls = [[request(position, k) for k in range(3)] for position in range(12)]
    found = await asyncio.gather(*(collect(rollout, call) for call in calls))
    assert [set(one) for one in found] == [{asked.key for asked in call} for call in calls]


async def test_f11_temperature_zero_is_greedy_and_seed_zero_a_seed(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    greedy = await collect(rollout, [request(0, k, temperature=0.0, seed=0) for k in range(3)])
    assert len({completion.token_ids for completion in greedy.values()}) == 1
    sampled = await collect(rollout, [request(0, seed=0)])
    other = await collect(rollout, [request(0, seed=1)])
    assert sampled["train:e0-p0-k0-a0"].token_ids != other["train:e0-p0-k0-a0"].token_ids


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -7}, "top_k"),
        ({"top_k": 0.5}, "top_k"),
        ({"top_p": 1.2}, "top_p"),
        ({"min_p": 1.0}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"stop": ("", "END")}, "stop"),
        ({"min_tokens": -1}, "min_tokens"),
    ],
)
async def test_bad_sampling_parameters_name_the_field_and_disturb_nobody(
    form: Form, rollout_core: Any, params: dict[str, Any], field: str
) -> None:
    rollout = await form.rollout(rollout_core)
    good = asyncio.create_task(collect(rollout, [request(1), request(2)]))
    with pytest.raises(InvalidInputError, match=field):
        await collect(rollout, [request(3), request(4, **params)])
    assert all(completion.finish_reason is FinishReason.LENGTH for completion in (await good).values())
    assert (await rollout.status()).running_count == 0


async def test_a_bad_prompt_and_a_repeated_sample_are_refused(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    for bad in (
        dataclasses.replace(request(0), prompt_ids=()),
        dataclasses.replace(request(0), prompt_ids=(1, 99_999)),
        dataclasses.replace(request(0), prompt_ids=(1, 1 << 40)),
    ):
        with pytest.raises(InvalidInputError):
            await collect(rollout, [bad])
    with pytest.raises(InvalidInputError):
        await collect(rollout, [request(0), request(0)])


async def test_a_sample_in_flight_cannot_be_asked_for_again(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    await rollout.pause("keep", mutation())
    first = asyncio.create_task(collect(rollout, [request(0)]))
    await until(rollout, lambda status: status.waiting_count + status.running_count == 1)
    with pytest.raises(InvalidInputError, match="in flight"):
        await collect(rollout, [request(0)])
    await rollout.resume(mutation())
    assert len(await first) == 1


async def test_it_goes_on_after_tokens_that_another_server_generated(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    whole = (await collect(rollout, [request(0)]))["train:e0-p0-k0-a0"]
    old = PolicyVersion("main", 7, "d" * 64)
    begun = Generated(
        whole.token_ids[:5], whole.log_probs[:5], (dataclasses.replace(whole.versions[0], version=old, token_count=5),)
    )
    rest = (await collect(rollout, [dataclasses.replace(request(0), generated=begun)]))["train:e0-p0-k0-a0"]
    assert rest.token_ids == whole.token_ids
    assert rest.log_probs == pytest.approx(whole.log_probs, abs=1e-5)
    assert [(run.version, run.token_count) for run in rest.versions] == [(old, 5), (whole.versions[0].version, 7)]


async def test_abort_ends_the_named_samples_with_what_they_have(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    long = [request(position, max_tokens=900) for position in range(4)]
    task = asyncio.create_task(collect(rollout, long))
    await until(rollout, lambda status: status.generated_token_count > 20)
    assert await rollout.abort([long[0].key, long[2].key, "train:e9-p9-k9-a9"], mutation()) == 2
    assert await rollout.abort([long[0].key], mutation()) == 0
    assert await rollout.abort([], mutation()) == 0
    assert await rollout.abort(None, mutation()) == 2
    for completion in (await task).values():
        assert completion.finish_reason is FinishReason.ABORTED
        assert 0 < len(completion.token_ids) == len(completion.log_probs) < 900


async def test_pause_keep_holds_still_and_resume_goes_on(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    expected = await collect(rollout, [request(0, max_tokens=300)])
    task = asyncio.create_task(collect(rollout, [request(0, max_tokens=300)]))
    await until(rollout, lambda status: status.running_count == 1)
    await rollout.pause("keep", mutation())
    paused = replace(await rollout.status(), tokens_per_second=0.0)
    await asyncio.sleep(0.05)
    assert replace(await rollout.status(), tokens_per_second=0.0) == paused
    assert (paused.state, paused.running_count) == ("paused", 1)
    await rollout.resume(mutation())
    assert (await task)["train:e0-p0-k0-a0"].token_ids == expected["train:e0-p0-k0-a0"].token_ids
    assert (await rollout.status()).state == "ready"


async def test_pause_abort_ends_what_runs(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    task = asyncio.create_task(collect(rollout, [request(0, max_tokens=900)]))
    await until(rollout, lambda status: status.running_count == 1)
    await rollout.pause("abort", mutation())
    assert (await task)["train:e0-p0-k0-a0"].finish_reason is FinishReason.ABORTED
    with pytest.raises(InvalidInputError, match="mode"):
        await rollout.pause("sleep", mutation())


async def test_drain_finishes_what_runs_and_takes_nothing_new(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    task = asyncio.create_task(collect(rollout, [request(0, max_tokens=200)]))
    await until(rollout, lambda status: status.running_count == 1)
    await rollout.drain(mutation())
    assert (await task)["train:e0-p0-k0-a0"].finish_reason is FinishReason.LENGTH
    assert (await rollout.status()).state == "draining"
    with pytest.raises(StateError, match="draining"):
        await collect(rollout, [request(1)])


async def test_a_sleeping_server_answers_nothing_until_it_wakes(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    with pytest.raises(InvalidInputError, match="level 7"):
        await rollout.sleep(7, mutation())
    await rollout.sleep(1, mutation())
    assert (await rollout.status()).state == "asleep"
    with pytest.raises(StateError, match="asleep"):
        await collect(rollout, [request(0)])
    await rollout.wake(mutation())
    assert (await rollout.status()).state == "ready"
    assert len(await collect(rollout, [request(0)])) == 1


async def test_the_deadline_ends_a_call_and_its_samples(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    await rollout.pause("keep", mutation())
    with pytest.raises(DeadlineError):
        async for _ in rollout.generate([request(0)], deadline_s=0.1):
            pass
    await rollout.resume(mutation())
    await until(rollout, lambda status: status.running_count + status.waiting_count == 0)
    assert len(await collect(rollout, [request(0)])) == 1


async def test_a_caller_that_leaves_ends_its_samples_and_may_ask_again(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    asked = [request(0, max_tokens=3), request(1, max_tokens=900)]
    stream: Any = rollout.generate(asked, deadline_s=DEADLINE_S)
    first = await anext(stream)
    assert first.sample_id == asked[0].sample_id
    await stream.aclose()
    again = await collect(rollout, [request(1, max_tokens=20)])
    assert len(again[asked[1].key].token_ids) == 20
    assert (await rollout.status()).running_count == 0


async def test_a_cancelled_caller_ends_its_samples(form: Form, rollout_core: Any) -> None:
    rollout = await form.rollout(rollout_core)
    other = asyncio.create_task(collect(rollout, [request(5, max_tokens=150)]))
    task = asyncio.create_task(collect(rollout, [request(0, max_tokens=1000)]))
    await until(rollout, lambda status: status.running_count == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len((await other)["train:e0-p5-k0-a0"].token_ids) == 150
    await until(rollout, lambda status: status.running_count == 0)


async def test_callers_that_come_and_go_disturb_nobody(form: Form, rollout_core: Any) -> None:
    """Calls end early, are cancelled, and ask for the same samples again; those that stay get what they would alone."""
    rollout = await form.rollout(rollout_core)
    draw = random.Random(11)
    expected = await collect(rollout, [request(position, k) for position in range(8) for k in range(3)])

    async def caller(position: int) -> None:
        asked = [request(position, k) for k in range(3)]
        for _ in range(draw.randrange(4)):
            stream: Any = rollout.generate(asked, deadline_s=DEADLINE_S)
            if draw.random() < 0.5:
                for _ in range(draw.randrange(3)):
                    await anext(stream)
                await stream.aclose()
            else:
                task = asyncio.create_task(collect(rollout, [request(position, k, purpose="val") for k in range(3)]))
                await asyncio.sleep(draw.random() / 100)
                task.cancel()
                await asyncio.wait([task])
        found = await collect(rollout, asked)
        assert all(found[one.key].token_ids == expected[one.key].token_ids for one in asked)

    await asyncio.gather(*(caller(position) for position in range(8)))
    await until(rollout, lambda status: status.running_count + status.waiting_count == 0)


async def test_the_status_tells_slots_version_and_context(form: Form, rollout_core: Any) -> None:
    direct = await rollout_core.status()
    assert await (await form.rollout(rollout_core)).status() == direct
    assert direct.version is not None
    assert (direct.state, direct.slot_count, direct.max_model_len) == ("ready", 8, 1024)


async def test_a_full_queue_is_overload_with_advice(form: Form, make_rollout: MakeRollout) -> None:
    rollout = await form.rollout(make_rollout(slot_count=1, max_waiting=4))
    await rollout.pause("keep", mutation())
    with pytest.raises(OverloadedError) as caught:
        await collect(rollout, [request(position) for position in range(40)])
    assert caught.value.retry_after_s > 0
    await rollout.resume(mutation())
    assert len(await collect(rollout, [request(0)])) == 1


async def test_a_stale_server_answers_nothing(form: Form, make_rollout: MakeRollout) -> None:
    rollout = await form.rollout(make_rollout(start_stale=True))
    status = await rollout.status()
    assert (status.state, status.version) == ("stale", None)
    with pytest.raises(StateError, match="no current weights"):
        await collect(rollout, [request(0)])


async def test_a_sample_spread_over_many_tokens_runs(form: Form, rollout_core: Any) -> None:
    """Runs of 3 tokens on the wire put together are the completion, stop strings and text included."""
    asked = request(0, max_tokens=400)
    direct = (await collect(rollout_core, [asked]))[asked.key]
    found = (await collect(await form.rollout(rollout_core), [asked]))[asked.key]
    assert numbers(found) == numbers(direct)


async def test_a_caller_can_watch_tokens_come(form: Form, rollout_core: Any) -> None:
    """Runs follow each other without a gap, and are the completion's first tokens; nobody pays who doesn't watch."""
    rollout = await form.rollout(rollout_core)
    runs: list[TokenRun] = []
    asked = request(0, max_tokens=40)
    [completion] = [one async for one in rollout.generate([asked], deadline_s=DEADLINE_S, on_run=runs.append)]
    assert len(runs) > 1
    seen = [token for run in runs for token in run.token_ids]
    assert [run.offset for run in runs] == [sum(len(r.token_ids) for r in runs[:i]) for i in range(len(runs))]
    assert seen == list(completion.token_ids[: len(seen)])
    assert [value for run in runs for value in run.log_probs] == pytest.approx(completion.log_probs[: len(seen)])
