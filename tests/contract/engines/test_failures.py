"""Engines that die, freeze, hang and fail (case D6): an error within a bound, never a sample that looks whole."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from argosy.config import Config
from argosy.roles.rollout import Rollout
from argosy.rollout.build import build_core
from argosy.rollout.core import RolloutCore
from argosy.rpc.clients.rollout import RolloutClient
from argosy.types.errors import DeadlineError, UnavailableError
from argosy.types.records import Completion, FinishReason
from contract.engines.conftest import Model, client_of
from contract.engines.served import LONG, MAX_LEN, Served, ask, serving
from contract.forms import Form, request, until

SLACK_S = 10.0
"""For a machine that does other things meanwhile."""
Failing = Callable[[str, int], Awaitable[tuple[RolloutCore, Rollout]]]


async def outcome(rollout: Rollout, *, count: int = 2, deadline_s: float = 30.0) -> tuple[list[Completion], str]:
    """What a caller sees of samples whose engine fails: completions, and the name of the error."""
    found: list[Completion] = []
    try:
        asked = [request(position, max_tokens=LONG) for position in range(count)]
        async for completion in rollout.generate(asked, deadline_s=deadline_s):
            found.append(completion)
    except (UnavailableError, DeadlineError) as error:
        return found, type(error).__name__
    return found, ""


async def test_d6_a_frozen_server_costs_the_deadline_and_no_more(served: Served, rollout: RolloutClient) -> None:
    await ask(rollout, [request(0)])
    served.signal(signal.SIGSTOP)
    try:
        started = time.monotonic()
        found, error = await outcome(rollout, deadline_s=2)
        assert time.monotonic() - started < 2 + SLACK_S
        assert error
        assert all(completion.finish_reason is FinishReason.FAILED for completion in found)
    finally:
        served.signal(signal.SIGCONT)
    await until(rollout, lambda status: status.running_count + status.waiting_count == 0)
    assert len(await ask(rollout, [request(0)])) == 1


async def test_d6_a_frozen_engine_behind_a_server_that_lives(served: Served, rollout: RolloutClient) -> None:
    if not served.children:
        pytest.skip(f"the engine {served.engine} has no processes of its own")
    await ask(rollout, [request(0)])
    served.signal(signal.SIGSTOP, children=True)
    try:
        started = time.monotonic()
        found, error = await outcome(rollout, deadline_s=3)
        assert time.monotonic() - started < 3 + SLACK_S
        assert error == "DeadlineError"
        assert all(completion.finish_reason is FinishReason.FAILED for completion in found)
    finally:
        served.signal(signal.SIGCONT, children=True)
    await until(rollout, lambda status: status.running_count + status.waiting_count == 0)
    assert len(await ask(rollout, [request(0)])) == 1


async def test_d6_a_server_that_is_killed_after_some_samples(model: Model) -> None:
    with serving(
        "simulated", model.path, simulated__failure="kill", simulated__failure_after=3, simulated__decode_ms=0.1
    ) as served:
        async with client_of(served) as rollout:
            found, error = await outcome(rollout, count=6)
            check_partial(found, error, count=6)
        assert await asyncio.to_thread(served.process.wait, 30) == -signal.SIGKILL


def check_partial(found: list[Completion], error: str, *, count: int) -> None:
    """At most three were finished, and nothing else looks as if it were."""
    whole = [completion for completion in found if completion.finish_reason is FinishReason.LENGTH]
    assert len(whole) <= 3
    assert error or len(found) == count
    assert all(len(completion.token_ids) == LONG for completion in whole)
    assert {completion.finish_reason for completion in found} <= {FinishReason.LENGTH, FinishReason.FAILED}


@pytest.fixture
async def failing(model: Model, grpc_form: Form) -> AsyncIterator[Failing]:
    """Simulated engines with a failure, in this process behind a real server."""
    cores: list[RolloutCore] = []

    async def make(failure: str, after: int) -> tuple[RolloutCore, Rollout]:
        values = {"failure": failure, "failure_after": after, "decode_ms": 0.1}
        config = Config().with_values({
            "actor_rollout_ref.model.path": str(model.path),
            "actor_rollout_ref.rollout.name": "simulated",
            "actor_rollout_ref.rollout.max_model_len": MAX_LEN,
            "argosy.rollout.stall_timeout_s": 0.5,
            **{f"argosy.rollout.simulated.{name}": value for name, value in values.items()},
        })  # fmt: skip
        core = build_core(config, start_stale=False)
        await core.start()
        cores.append(core)
        return core, await grpc_form.rollout(core)

    yield make
    for core in cores:
        await core.close()


async def test_d6_an_engine_that_fails_after_some_samples(failing: Failing) -> None:
    core, rollout = await failing("fail", 3)
    found, error = await outcome(rollout, count=6)
    check_partial(found, error, count=6)
    assert "failed on demand" in str(await asyncio.wait_for(core.wait_failed(), 5))


async def test_d6_an_engine_that_never_answers_is_told_as_stuck(failing: Failing) -> None:
    _, rollout = await failing("hang", 0)
    started = time.monotonic()
    task = asyncio.create_task(outcome(rollout, deadline_s=3))
    await until(rollout, lambda status: status.state == "stuck")
    found, error = await task
    assert error == "DeadlineError"
    assert {completion.finish_reason for completion in found} <= {FinishReason.FAILED}
    assert time.monotonic() - started < 3 + SLACK_S


async def test_d6_an_engine_that_fails_each_sample_says_so(failing: Failing) -> None:
    _, rollout = await failing("error", 2)
    await ask(rollout, [request(0), request(1)])
    found, error = await outcome(rollout, count=4)
    assert error == ""
    assert [completion.finish_reason for completion in found] == [FinishReason.FAILED] * 4
    assert {completion.error for completion in found} == {"failed on demand"}
