"""Servers that fail in odd ways under single samples: nothing spins, nothing hangs, and every place is given back."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from argosy.config import Config
from argosy.controller.context import Services
from argosy.controller.ledger import Ledger, LedgerError
from argosy.controller.stages import single
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.vitals import Vitals
from argosy.types.errors import ArgosyError, InternalError, OverloadedError, UnavailableError
from argosy.types.ids import SampleId
from argosy.types.records import Completion, FinishReason, GenerateRequest, SamplingParams

SAMPLE = SampleId(0, 0, 0)


class Server:
    """A server with one fault."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.calls = 0
        self.asked = asyncio.Event()
        self.status_error: ArgosyError | None = None

    async def status(self) -> Any:
        if self.status_error is not None:
            raise self.status_error
        return types.SimpleNamespace(slot_count=4, state="ready", version=None, engine="x", capabilities={})

    async def generate(self, requests: list[GenerateRequest], **_: object) -> AsyncIterator[Completion]:
        self.calls += 1
        self.asked.set()
        await asyncio.sleep(0)
        if self.fault == "hang":
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(0.1)  # tells the engine to stop
        if self.fault == "timeout":
            raise TimeoutError("of the engine's own")
        if self.fault == "overloaded":
            raise OverloadedError("busy", retry_after_s=0)
        if self.fault != "empty":
            yield Completion(requests[0].sample_id, (1,), (0.0,), (), FinishReason.STOP)


def stage(tmp_path: Path, **servers: Server) -> RolloutStage:
    ledger = Ledger(tmp_path, 1)
    services = Services(rollouts=servers, reward=None, policy=None, reference=None)  # type: ignore[arg-type]
    ctx = types.SimpleNamespace(
        config=Config(), deadline_s=0.5, count=lambda *_: None, services=services, ledger=ledger, vitals=Vitals()
    )
    return RolloutStage(cast(Any, ctx))


def request(purpose: str = "api") -> GenerateRequest:
    return GenerateRequest(SAMPLE, (1,), SamplingParams(4), cast(Any, purpose))


@pytest.mark.parametrize("fault", ["timeout", "empty", "overloaded"])
async def test_server_without_an_answer_is_asked_a_few_times(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single, "ROUND_PAUSE_S", 0.001)
    server = Server(fault)
    with pytest.raises(UnavailableError, match="could not be generated"):
        await asyncio.wait_for(stage(tmp_path, a=server).generate_one(request()), 20)
    assert single.MAX_ROUNDS <= server.calls <= 0.5 / single.MIN_PAUSE_S + 2 * single.MAX_ROUNDS


async def test_server_may_be_given_up_twice(tmp_path: Path) -> None:
    slow, well = Server("hang"), Server("hang")
    rollout = stage(tmp_path, a=slow, b=well)
    asking = asyncio.create_task(rollout.generate_one(request()))
    await asyncio.wait(
        [asyncio.create_task(server.asked.wait()) for server in (slow, well)], return_when=asyncio.FIRST_COMPLETED
    )
    at = "a" if slow.calls else "b"
    slow.fault = well.fault = ""
    rollout.give_up(at)
    await asyncio.sleep(0.02)  # the call is being ended
    rollout.give_up(at)
    assert (await asyncio.wait_for(asking, 20)).finish_reason is FinishReason.STOP


async def test_place_is_given_back_when_the_ledger_refuses(tmp_path: Path) -> None:
    rollout = stage(tmp_path, a=Server())
    with pytest.raises(LedgerError):
        await rollout.generate_one(request("train"))  # never drawn
    assert rollout.singles.places.outstanding("a") == 0
    assert rollout.singles.so_far(request()).token_ids == ()


@pytest.mark.parametrize("error", [InternalError("dying"), OverloadedError("busy", retry_after_s=1)])
async def test_waiting_ends_though_status_fails_oddly(
    error: ArgosyError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single, "ROUND_PAUSE_S", 0.001)
    server = Server()
    rollout = stage(tmp_path, a=server)
    await rollout.singles.refresh()
    server.status_error = error
    rollout.usable.discard("a")
    with pytest.raises(UnavailableError, match="no rollout server"):
        await asyncio.wait_for(rollout.generate_one(request()), 20)


async def test_waiting_ends_when_the_search_itself_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "ROUND_PAUSE_S", 0.001)
    rollout = stage(tmp_path, a=Server())
    await rollout.singles.refresh()
    rollout.usable.discard("a")

    async def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rollout.singles, "_take_back", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(rollout.generate_one(request()), 20)


async def test_a_server_that_is_given_up_while_samples_wait_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing runs there whose end could notice that nobody is left."""
    monkeypatch.setattr(single, "ROUND_PAUSE_S", 0.01)
    made = stage(tmp_path, a=Server())
    made.singles.places.hold("a", "test")
    waiting = asyncio.create_task(made.generate_one(request()))
    await asyncio.sleep(0.05)
    assert made.singles.places.is_waited_for
    made.give_up("a")
    made.singles.places.release("a", "test")
    async with asyncio.timeout(30):  # a hang guard
        assert (await waiting).finish_reason is FinishReason.STOP


async def test_an_answer_that_was_ended_for_new_weights_is_no_failure_however_late_it_comes(tmp_path: Path) -> None:
    server = Server()
    made = stage(tmp_path, a=server)
    ended = asyncio.Event()

    async def generate(requests: list[GenerateRequest], **_: object) -> AsyncIterator[Completion]:
        server.calls += 1
        server.asked.set()
        if server.calls == 1:
            await ended.wait()
            yield Completion(requests[0].sample_id, (), (), (), FinishReason.ABORTED)
        else:
            yield Completion(requests[0].sample_id, (1,), (0.0,), (), FinishReason.STOP)

    server.generate = generate  # type: ignore[method-assign]
    counted: list[str] = []
    made._ctx.count = lambda name, amount=1: counted.append(name)  # type: ignore[method-assign]
    running = asyncio.create_task(made.generate_one(request()))
    await server.asked.wait()
    made.singles.interrupt("a")
    ended.set()
    assert (await running).finish_reason is FinishReason.STOP
    assert counted == ["rollout/resumed_samples"]
