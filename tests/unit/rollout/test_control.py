"""Abort, pause, resume, drain, status, deadlines, bounds, and callers that go away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from argosy.rollout.core import HfRollout
from argosy.rollout.engines.hf.sleeping import Nap
from argosy.types.errors import DeadlineError, InvalidInputError, OverloadedError, StateError, UnavailableError
from argosy.types.ids import PolicyVersion
from argosy.types.records import Completion, FinishReason, GenerateRequest
from argosy.weightsync import Snapshot
from unit.rollout.support import CTX, Open, answers, loop_of, request, until_sampled

LONG = 200


async def gather(rollout: HfRollout, requests: list[GenerateRequest]) -> list[Completion]:
    return await answers(rollout, requests)


async def test_abort_by_key_keeps_the_partial_tokens(open_rollout: Open) -> None:
    rollout = await open_rollout(slot_count=2)
    requests = [request(k, max_tokens=LONG) for k in range(4)]
    work = asyncio.create_task(gather(rollout, requests))
    await until_sampled(rollout, running_count=2)
    # One that runs and one that waits; an unknown key is nobody's.
    assert await rollout.abort([requests[0].key, requests[3].key, "train:e9-p9-k9-a0"], CTX) == 2
    done = await work
    assert [c.finish_reason for c in done] == [
        FinishReason.ABORTED,
        FinishReason.LENGTH,
        FinishReason.LENGTH,
        FinishReason.ABORTED,
    ]
    assert 0 < len(done[0].token_ids) < LONG
    assert len(done[0].token_ids) == len(done[0].log_probs) == sum(run.token_count for run in done[0].versions)
    assert done[3].token_ids == ()
    [whole] = await answers(rollout, [replace(requests[0])])
    assert whole.token_ids[: len(done[0].token_ids)] == done[0].token_ids


async def test_abort_all(open_rollout: Open) -> None:
    rollout = await open_rollout(slot_count=2)
    work = asyncio.create_task(gather(rollout, [request(k, max_tokens=LONG) for k in range(3)]))
    await until_sampled(rollout)
    assert await rollout.abort(None, CTX) == 3
    assert {c.finish_reason for c in await work} == {FinishReason.ABORTED}
    assert await rollout.abort(None, CTX) == 0


async def test_pause_keep_and_resume_change_nothing(open_rollout: Open) -> None:
    requests = [request(k, max_tokens=60) for k in range(3)]
    expected = await answers(await open_rollout(), requests)
    rollout = await open_rollout()
    work = asyncio.create_task(gather(rollout, requests))
    await until_sampled(rollout)
    await rollout.pause("keep", CTX)
    before = await rollout.status()
    assert before.state == "paused"
    assert before.running_count == 3
    await asyncio.sleep(0.05)
    assert (await rollout.status()).generated_token_count == before.generated_token_count
    late = asyncio.create_task(gather(rollout, [request(7)]))  # taken in, waits
    async with asyncio.timeout(30):
        while (await rollout.status()).waiting_count != 1:  # noqa: ASYNC110 - a count sets no event
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    assert not late.done()
    assert (await rollout.status()).waiting_count == 1
    await rollout.resume(CTX)
    assert [c.token_ids for c in await work] == [c.token_ids for c in expected]
    assert len((await late)[0].token_ids) == 12


async def test_pause_abort_ends_what_runs(open_rollout: Open) -> None:
    rollout = await open_rollout()
    work = asyncio.create_task(gather(rollout, [request(max_tokens=LONG)]))
    await until_sampled(rollout)
    await rollout.pause("abort", CTX)
    assert (await work)[0].finish_reason is FinishReason.ABORTED
    await rollout.resume(CTX)
    assert (await answers(rollout, [request()]))[0].finish_reason is FinishReason.LENGTH
    with pytest.raises(InvalidInputError, match="pause mode 'stop'"):
        await rollout.pause("stop", CTX)


async def test_drain_finishes_what_runs_and_takes_nothing_new(open_rollout: Open) -> None:
    rollout = await open_rollout(slot_count=1)
    work = asyncio.create_task(gather(rollout, [request(k, max_tokens=60) for k in range(2)]))
    await until_sampled(rollout)
    draining = asyncio.create_task(rollout.drain(CTX))
    await asyncio.sleep(0)
    with pytest.raises(StateError, match="draining"):
        await answers(rollout, [request(9)])
    await draining
    assert (await rollout.status()).state == "draining"
    assert [len(c.token_ids) for c in await work] == [60, 60]


async def test_drain_past_its_deadline_is_an_error(open_rollout: Open) -> None:
    rollout = await open_rollout()
    work = asyncio.create_task(gather(rollout, [request(max_tokens=LONG)]))
    await until_sampled(rollout)
    with pytest.raises(DeadlineError, match="draining"):
        await rollout.drain(replace(CTX, deadline_s=0.0))
    assert len((await work)[0].token_ids) == LONG


async def test_a_stuck_engine_holds_up_neither_drain_nor_sleep(open_rollout: Open) -> None:
    rollout = await open_rollout(stall_timeout_s=0.05)
    may_go = threading.Event()
    loop_of(rollout).call(lambda: may_go.wait(20))
    short = replace(CTX, deadline_s=0.05)
    async with asyncio.timeout(5):
        with pytest.raises(DeadlineError, match="does not sleep"):
            await rollout.sleep(1, short)
        with pytest.raises(DeadlineError, match="draining"):
            await rollout.drain(short)
    may_go.set()


async def test_a_sleep_that_outlasts_its_caller_is_one_all_the_same(
    open_rollout: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = await open_rollout()
    may_go = threading.Event()

    def slow(*args: Any) -> Any:
        may_go.wait(20)
        return Nap(*args)

    monkeypatch.setattr("argosy.rollout.engines.hf.adapter.Nap", slow)
    with pytest.raises(DeadlineError, match="does not sleep"):
        await rollout.sleep(1, replace(CTX, deadline_s=0.05))
    with pytest.raises(StateError, match="asleep"):
        await answers(rollout, [request()])
    with pytest.raises(DeadlineError, match="falls asleep"):
        await rollout.wake(replace(CTX, deadline_s=0.05))
    may_go.set()
    await rollout.sleep(1, CTX)
    await rollout.wake(CTX)
    assert len((await answers(rollout, [request()]))[0].token_ids) == 12


async def test_a_swap_that_does_not_end_is_told_as_stuck(open_rollout: Open) -> None:
    """Nothing runs and the server is stale, but not idle."""
    rollout = await open_rollout(stall_timeout_s=0.1)
    state = {name: tensor.clone() for name, tensor in (await rollout.engine.held_state()).items()}
    snapshot = Snapshot.freeze("main", 1, state, rollout.engine.facts.tied)
    await rollout.start_weight_update("s", snapshot.manifest, CTX)
    await rollout.update_weights("s", snapshot, CTX)
    may_go = asyncio.Event()
    swap = rollout.engine.swap_weights

    async def hangs(tensors: Mapping[str, Tensor], version: PolicyVersion) -> None:
        await may_go.wait()
        await swap(tensors, version)

    rollout.engine.swap_weights = hangs  # type: ignore[method-assign]
    finish = asyncio.create_task(rollout.finish_weight_update("s", CTX))
    await asyncio.sleep(0.01)
    assert (await rollout.status()).state == "ready"
    await asyncio.sleep(0.2)
    assert (await rollout.status()).state == "stuck"
    may_go.set()
    await finish
    assert (await rollout.status()).state == "ready"


async def test_deadline_ends_the_call_and_its_samples(open_rollout: Open) -> None:
    rollout = await open_rollout()
    await rollout.pause("keep", CTX)
    with pytest.raises(DeadlineError, match="1 samples"):
        _ = [c async for c in rollout.generate([request()], deadline_s=0.05)]
    await rollout.resume(CTX)
    assert (await answers(rollout, [request()]))[0].finish_reason is FinishReason.LENGTH  # the key is free again
    status = await rollout.status()
    assert status.running_count == status.waiting_count == 0


async def test_a_caller_that_leaves_frees_its_slots(open_rollout: Open) -> None:
    rollout = await open_rollout(slot_count=1)
    work = asyncio.create_task(gather(rollout, [request(k, max_tokens=LONG) for k in range(5)]))
    await until_sampled(rollout)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await answers(rollout, [request(0)])
    status = await rollout.status()
    assert status.running_count == status.waiting_count == 0
    assert status.generated_token_count < 5 * LONG


async def test_queue_is_bounded_and_takes_all_or_none(open_rollout: Open) -> None:
    rollout = await open_rollout(slot_count=2, max_waiting=3)
    await rollout.pause("keep", CTX)
    with pytest.raises(OverloadedError) as caught:
        await answers(rollout, [request(k) for k in range(6)])
    assert caught.value.retry_after_s > 0
    assert (await rollout.status()).waiting_count == 0
    work = asyncio.create_task(gather(rollout, [request(k) for k in range(5)]))
    await asyncio.sleep(0.02)
    with pytest.raises(OverloadedError):
        await answers(rollout, [request(9)])
    await rollout.resume(CTX)
    assert len(await work) == 5


async def test_a_key_in_flight_is_refused(open_rollout: Open) -> None:
    rollout = await open_rollout()
    with pytest.raises(InvalidInputError, match=r"train:e0-p0-k1-a0 is in flight"):
        await answers(rollout, [request(1), request(0), request(1)])
    work = asyncio.create_task(gather(rollout, [request(0, max_tokens=LONG)]))
    await until_sampled(rollout)
    with pytest.raises(InvalidInputError, match=r"train:e0-p0-k0-a0 is in flight"):
        await answers(rollout, [request(0)])
    await answers(rollout, [request(0, purpose="val")])
    assert len((await work)[0].token_ids) == LONG


async def test_status_counts(open_rollout: Open) -> None:
    rollout = await open_rollout(slot_count=3)
    status = await rollout.status()
    assert (status.state, status.slot_count, status.max_model_len) == ("ready", 3, 256)
    assert status.generated_token_count == status.cached_token_count == 0
    done = await answers(rollout, [request(k) for k in range(5)])
    status = await rollout.status()
    assert status.generated_token_count == sum(len(c.token_ids) for c in done) == 60
    assert status.cached_token_count == 24


async def test_closed_engine_is_unavailable(open_rollout: Open) -> None:
    rollout = await open_rollout()
    work = asyncio.create_task(gather(rollout, [request(max_tokens=LONG)]))
    await until_sampled(rollout)
    await rollout.close()
    assert (await work)[0].finish_reason is FinishReason.ABORTED
    with pytest.raises(UnavailableError, match="closed"):
        await answers(rollout, [request(1)])


async def test_no_requests_is_no_answers(open_rollout: Open) -> None:
    assert await answers(await open_rollout(), []) == []


async def test_a_failing_step_fails_its_samples_and_not_the_server(
    open_rollout: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from argosy.rollout.engines.hf.runner import Runner

    rollout = await open_rollout(slot_count=2)
    with monkeypatch.context() as patch:

        def broken(self: Runner, *args: object) -> None:
            raise RuntimeError("out of memory")

        patch.setattr(Runner, "decode", broken)
        done = await answers(rollout, [request(k) for k in range(2)])
        assert {c.finish_reason for c in done} == {FinishReason.FAILED}
        assert "out of memory" in done[0].error
    done = await answers(rollout, [request(k) for k in range(3)])
    assert {c.finish_reason for c in done} == {FinishReason.LENGTH}


async def test_the_death_of_the_engine_is_told(open_rollout: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    from argosy.rollout.engines.hf.engine import Engine

    rollout = await open_rollout()
    watching = asyncio.create_task(rollout.wait_failed())

    def dies(self: Engine, error: Exception) -> None:
        raise MemoryError("no room even to fail")

    def broken(self: Engine) -> None:
        raise RuntimeError("defect")

    monkeypatch.setattr(Engine, "_fail_running", dies)
    monkeypatch.setattr(Engine, "step", broken)
    work = asyncio.create_task(answers(rollout, [request()]))
    async with asyncio.timeout(20):
        assert isinstance(await watching, MemoryError)
    work.cancel()
    with pytest.raises(UnavailableError):
        await answers(rollout, [request(1)])
