"""Clients that hang, a server that ends, and a source that goes on after a restart."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from argosy.controller.groups import Ticket
from argosy.controller.ledger import LedgerError
from argosy.controller.openai import guards, server
from argosy.controller.openai.source import SessionSource
from argosy.types.ids import GroupId, SampleId
from support.openai_endpoint import Gate, Served
from unit.controller.openai.conftest import Serve

CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


async def connect(up: Served, said: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = up.address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(said)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("said", [b"", b"POST /v1/chat", CHAT])
async def test_a_connection_without_a_request_is_closed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.3)
    up: Served = await serve()
    reader, writer = await connect(up, said)
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()


async def test_half_a_body_is_not_waited_for(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "BODY_TIMEOUT_S", 0.3)
    up: Served = await serve()
    reader, writer = await connect(up, CHAT + b'content-length: 100\r\n\r\n{"model"')
    async with asyncio.timeout(20):
        assert b"408" in await reader.readline()
    writer.close()
    assert (await up.http("GET", "/health")).status_code == 200


async def test_hanging_clients_hold_up_nobody(serve: Serve) -> None:
    up: Served = await serve(max_concurrency=2)
    hanging = [await connect(up, CHAT + b'content-length: 100\r\n\r\n{"model"') for _ in range(50)]
    async with asyncio.timeout(20):
        reply = await up.client().chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], max_tokens=4
        )
    assert reply.choices
    for _, writer in hanging:
        writer.close()


async def test_bodies_that_are_being_read_are_bounded_in_number(serve: Serve) -> None:
    up: Served = await serve(max_concurrency=1, max_sessions=2)
    hanging = [await connect(up, CHAT + b'content-length: 100\r\n\r\n{"model"') for _ in range(3)]

    async def full() -> bool:
        return (await up.http("POST", "/v1/sessions", {"group": "g"})).status_code == 429

    await up.until(full)
    refused = (await up.http("POST", "/v1/chat/completions", {})).json()["error"]["message"]
    assert refused.startswith("3 requests are being read (argosy.openai.max_concurrency + max_sessions=3)")
    for _, writer in hanging:
        writer.close()
    await up.until(lambda: free(up))


async def test_bodies_that_are_being_read_are_bounded_in_bytes(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "READING_BYTES", 0)
    small: Served = await serve(max_body_mb=1)
    part = CHAT + b"content-length: 900000\r\n\r\n" + b" " * 700_000
    first, second = [await connect(small, part) for _ in range(2)]
    said = [asyncio.create_task(reader.readline()) for reader, _ in (first, second)]
    done, _ = await asyncio.wait(said, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    assert [b"429" in one.result() for one in done] == [True]
    for task in said:
        task.cancel()
    for _, writer in (first, second):
        writer.close()


async def free(up: Served) -> bool:
    return (await up.http("POST", "/v1/chat/completions", {})).status_code == 400


async def test_calls_that_wait_for_a_session_have_a_bound(serve: Serve) -> None:
    """However many name one session that can't begin; a call of one that has begun needs no place among them."""
    up: Served = await serve(max_sessions=2)
    begun = (await up.http("POST", "/v1/sessions", {"group": "g"})).json()
    up.gate.open(0)
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    header = {"X-Argosy-Session": "late", "X-Argosy-Group": "other"}
    calls = [asyncio.create_task(up.http("POST", "/v1/chat/completions", body, headers=header)) for _ in range(5)]
    done, waiting = set[Any](), set[Any](calls)
    async with asyncio.timeout(20):
        while len(done) < 3:
            more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= more
    assert {call.result().status_code for call in done} == {429}
    assert "2 clients wait for a session" in next(iter(done)).result().json()["error"]["message"]
    own = await up.http("POST", "/v1/chat/completions", body, headers={"X-Argosy-Session": begun["id"]})
    assert own.status_code == 200
    up.gate.open(1)
    assert {call.status_code for call in await asyncio.gather(*waiting)} == {200}


async def test_a_stream_that_nobody_reads_ends(serve: Serve) -> None:
    """The client asks and never reads: its sample and its place are free once the time is up."""
    up: Served = await serve({"argosy.rollout.stream_interval_tokens": 1}, deadline_s=1)
    body = b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": true, "max_tokens": 300}'
    _, writer = await connect(up, CHAT + b"content-length: %d\r\n\r\n%s" % (len(body), body))

    async def generated() -> bool:
        return bool(up.rollout.requests)

    await up.until(generated)
    await up.until(up.is_idle)
    writer.close()


async def test_the_end_of_the_run_ends_the_server(serve: Serve, agent_job: Any, tmp_path: Path) -> None:
    """Its address file goes, running calls end, and the port is free again."""
    from support.openai_endpoint import served

    async with served(agent_job, tmp_path) as up:
        assert (tmp_path / "run" / "openai.json").exists()
        address = up.address
    assert not (tmp_path / "run" / "openai.json").exists()
    host, _, port = address.removeprefix("http://").partition(":")
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection(host, int(port))


async def test_after_a_restart_rows_are_handed_out_again(serve: Serve) -> None:
    """Tasks of the data set that were under way come first, whole; those of clients' own keys are dropped."""
    up: Served = await serve()
    seats = [(await up.http("POST", "/v1/tasks/next")).json() for _ in range(3)]
    own = (await up.http("POST", "/v1/sessions", {"group": "own"})).json()
    state, place = up.source.state(), up.source.sampler_state()
    assert [entry["group"] for entry in state["groups"]] == ["e0-p0", "e0-p1", "e0-p1000000000"]
    assert up.source.open_groups() == {GroupId(0, 0), GroupId(0, 1), GroupId(0, 10**9)}
    up.running.cancel()
    await asyncio.gather(up.running, return_exceptions=True)

    successor = SessionSource(up.ctx, up.source._sampler, up.tokenizer)
    successor._sampler.restore(place)
    numbers = iter(range(1, 10))
    successor.restore(state, lambda group, admitted: Ticket(next(numbers), admitted))
    gate = Gate(room=1)
    running = asyncio.create_task(successor.run(gate))
    again = [await successor.task("", "", 5) for _ in range(1)]
    assert again[0].group == GroupId(0, 0)
    assert [again[0].begin(f"n{k}", {}).sample_id.k for k in range(2)] == [0, 1]
    assert (await successor.task("", "", 5)).group == GroupId(0, 1)
    assert [ticket.number for ticket in gate.given_up] == [3]
    assert "the controller was restarted" in up.state_of(own["sample_id"])
    assert up.state_of(seats[0]["sample_id"]) == "drawn"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_books_that_do_not_balance_end_the_run(serve: Serve) -> None:
    """A defect that a client's call brings to light is the run's, not only that call's."""
    up: Served = await serve()
    session = (await up.http("POST", "/v1/sessions", {"group": "g"})).json()
    up.ctx.ledger.dropped([SampleId.parse(session["sample_id"])], "behind the source's back")
    assert (await up.http("DELETE", f"/v1/sessions/{session['id']}")).status_code == 500
    with pytest.raises(ExceptionGroup) as ended:
        await up.running
    assert isinstance(ended.value.exceptions[0], LedgerError)


async def test_the_example_agent(serve: Serve) -> None:
    """examples/agents/agent.py works as it is: rows are taken, answered and rewarded until the run wants no more."""
    path = Path(__file__).parents[4] / "examples/agents/agent.py"
    spec = importlib.util.spec_from_file_location("agent", path)
    assert spec is not None
    assert spec.loader is not None
    agent = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(agent)
    assert agent.calculate('{"expression": "-3 * 5"}') == "-15"
    assert agent.calculate('{"expression": "__import__(1)"}').startswith("error")
    up: Served = await serve({"argosy.agents.tool_prompt": "system", "data.max_prompt_length": 900,
                              "actor_rollout_ref.rollout.max_model_len": 1000})  # fmt: skip
    up.gate.open(2)
    working = asyncio.create_task(agent.main(str(up.ctx.config.run_folder), 4))

    async def done() -> bool:
        return len(up.gate.finished) == 2

    await up.until(done)
    up.running.cancel()
    async with asyncio.timeout(20):
        await working
    assert sorted(str(group.prompt.group) for group in up.gate.finished) == ["e0-p0", "e0-p1"]
    assert "calculator" in up.gate.finished[0].prompt.text
