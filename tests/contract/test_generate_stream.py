"""What only the wire has: one stream for all calls, partial answers of lost servers, refusals, half-closing."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest

from argosy.api.common.v1.context_pb2 import RequestContext
from argosy.api.common.v1.ids_pb2 import PolicyVersion, VersionRun
from argosy.api.rollout.v1 import generate_pb2 as pb
from argosy.api.rollout.v1 import rollout_service_pb2_grpc
from argosy.roles.rollout import Rollout
from argosy.rollout.service import add_to_server
from argosy.rpc.clients import generate_stream
from argosy.rpc.clients.rollout import RolloutClient
from argosy.rpc.codec.rollout import key_to_pb, sample_request_to_pb
from argosy.rpc.gate import Gate
from argosy.rpc.options import RpcOptions
from argosy.rpc.server import RpcServer
from argosy.types.errors import (
    ArgosyError,
    CorruptDataError,
    DeadlineError,
    FencedError,
    InternalError,
    InvalidInputError,
    UnavailableError,
)
from argosy.types.records import Completion, FinishReason, Generated, GenerateRequest, Leader
from contract.forms import DEADLINE_S, Form, MakeRollout, collect, mutation, request, until


class CountStreams(grpc.aio.ServerInterceptor):
    """Counts the calls of Generate that a server gets."""

    def __init__(self) -> None:
        self.count = 0

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        self.count += handler_call_details.method.endswith("/Generate")
        return await continuation(handler_call_details)


async def test_all_calls_share_one_stream_which_ends_when_nobody_needs_it(rollout_core: Any) -> None:
    counter = CountStreams()
    server = RpcServer.listen("127.0.0.1", interceptors=[counter])
    names = add_to_server(rollout_core, server.server, Gate("rollout-7"))
    await server.start()
    await server.serve(names)
    client = RolloutClient(server.address)
    for round_number in (1, 2):
        calls = [collect(client, [request(position, k) for k in range(2)]) for position in range(10)]
        answers = await asyncio.gather(*calls)
        assert {completion.member_id for found in answers for completion in found.values()} == {"rollout-7"}
        assert counter.count == round_number
    # No idle stream is left that would hold up a graceful stop.
    async with asyncio.timeout(5):
        await server.stop(30)
    await client.close()


async def outcome(
    client: Rollout, asked: Sequence[GenerateRequest], deadline_s: float
) -> tuple[list[Completion], ArgosyError | None]:
    """What a call yields, and what it raises in the end."""
    got: list[Completion] = []
    try:
        async for completion in client.generate(asked, deadline_s=deadline_s):
            got.append(completion)
    except ArgosyError as error:
        return got, error
    return got, None


async def test_d6_a_lost_server_gives_partial_answers_that_go_on_elsewhere(
    grpc_form: Form, make_rollout: MakeRollout
) -> None:
    asked = [request(0, max_tokens=4), request(1, max_tokens=120), request(2, max_tokens=120)]
    first, second = make_rollout(), make_rollout()
    expected = await collect(second, asked)
    client = await grpc_form.rollout(first)
    task = asyncio.create_task(outcome(client, asked, DEADLINE_S))
    await until(first, lambda status: status.generated_token_count > 60)
    await grpc_form.servers[-1].server.stop(None)
    got, error = await task
    assert isinstance(error, UnavailableError)
    assert "rollout at 127.0.0.1" in str(error)
    by_key = {f"{completion.purpose}:{completion.sample_id}": completion for completion in got}
    assert by_key.keys() == expected.keys()
    assert by_key[asked[0].key].finish_reason is FinishReason.LENGTH
    rest = []
    for one in asked[1:]:
        partial = by_key[one.key]
        assert partial.finish_reason is FinishReason.FAILED
        assert partial.error
        count = len(partial.token_ids)
        assert 0 < count < 120
        assert partial.token_ids == expected[one.key].token_ids[:count]
        assert len(partial.log_probs) == count == sum(run.token_count for run in partial.versions)
        begun = Generated(partial.token_ids, partial.log_probs, partial.versions)
        rest.append(dataclasses.replace(one, generated=begun))
    finished = await collect(await grpc_form.rollout(second), rest)
    for one in rest:
        assert finished[one.key].token_ids == expected[one.key].token_ids
        assert finished[one.key].log_probs == pytest.approx(expected[one.key].log_probs, abs=1e-5)
        assert finished[one.key].versions == expected[one.key].versions


async def test_a_server_that_was_never_there(grpc_form: Form, rollout_core: Any) -> None:
    client = await grpc_form.rollout(rollout_core)
    await grpc_form.servers[-1].server.stop(None)
    got, error = await outcome(client, [request(0), request(1)], DEADLINE_S)
    assert isinstance(error, UnavailableError)
    assert [completion.finish_reason for completion in got] == [FinishReason.FAILED] * 2
    assert all(completion.token_ids == () for completion in got)


async def test_a_client_that_vanishes_ends_its_samples_on_the_server(grpc_form: Form, rollout_core: Any) -> None:
    client = await grpc_form.rollout(rollout_core)
    task = asyncio.create_task(outcome(client, [request(0, max_tokens=1000)], DEADLINE_S))
    await until(rollout_core, lambda status: status.running_count == 1)
    assert isinstance(client, RolloutClient)
    await client.close()
    got, error = await task
    assert isinstance(error, UnavailableError)
    assert [completion.finish_reason for completion in got] == [FinishReason.FAILED]
    await until(rollout_core, lambda status: status.running_count == 0)


async def test_many_samples_are_sent_in_several_messages(
    grpc_form: Form, rollout_core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate_stream, "MAX_ADD_BYTES", 300)
    monkeypatch.setattr(generate_stream, "MAX_WAITING_ADDS", 2)
    client = await grpc_form.rollout(rollout_core)
    assert len(await collect(client, [request(position, max_tokens=2) for position in range(40)])) == 40
    with pytest.raises(InvalidInputError, match="top_p"):
        await collect(client, [request(position, top_p=1.0 + (position == 39)) for position in range(40)])
    await until(rollout_core, lambda status: status.running_count + status.waiting_count == 0)


async def test_a_message_that_is_nonsense_ends_the_stream(grpc_form: Form, rollout_core: Any) -> None:
    client = await grpc_form.rollout(rollout_core)
    stub: Any = client._stub  # type: ignore[attr-defined]
    call = stub.Generate()
    await call.write(pb.GenerateRequest(context=RequestContext(run_id="run-1", term=5)))
    bad = sample_request_to_pb(request(0))
    bad.prompt_ids = b"123"
    await call.write(pb.GenerateRequest(add=pb.AddSamples(samples=[bad])))
    hello, answer = await call.read(), await call.read()
    assert hello.context.member_id == "member-0"
    assert answer.refused[0].reason == "INVALID_INPUT"
    assert "prompt_ids" in answer.refused[0].message
    # A leader of an older term is refused, and with it its stream.
    await call.write(pb.GenerateRequest(context=RequestContext(run_id="run-1", term=4)))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_cancelling_right_after_adding_ends_the_sample(grpc_form: Form, rollout_core: Any) -> None:
    client = await grpc_form.rollout(rollout_core)
    stub: Any = client._stub  # type: ignore[attr-defined]
    asked = request(0, max_tokens=1000)
    call = stub.Generate()
    await call.write(pb.GenerateRequest(add=pb.AddSamples(samples=[sample_request_to_pb(asked)])))
    await call.write(pb.GenerateRequest(cancel=pb.CancelSamples(keys=[key_to_pb(asked)])))
    await call.done_writing()
    ends = [end for response in [one async for one in call] for end in response.finished]
    assert [end.finish_reason for end in ends] == [pb.FINISH_REASON_ABORTED]
    assert ends[0].token_count < 1000


class Scripted(rollout_service_pb2_grpc.RolloutServiceServicer):
    """A rollout server of another make, that answers what a test tells it to."""

    def __init__(self, responses: list[pb.GenerateResponse]) -> None:
        self._responses = responses

    async def Generate(
        self, request_iterator: AsyncIterator[pb.GenerateRequest], context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        await anext(request_iterator)
        for response in self._responses:
            yield response
        await asyncio.sleep(30)


async def scripted(form: Form, *responses: pb.GenerateResponse) -> RolloutClient:
    def add(server: Any, gate: Gate) -> list[str]:
        rollout_service_pb2_grpc.add_RolloutServiceServicer_to_server(Scripted(list(responses)), server)  # type: ignore[abstract]
        return ["argosy.api.rollout.v1.RolloutService"]

    client = RolloutClient(await form.serve(add), options=RpcOptions())
    form.stack.push_async_callback(client.close)
    return client


def run_of(count: int, offset: int = 0) -> pb.TokenRun:
    version = PolicyVersion(lineage="main", digest="d")
    tokens = pb.GeneratedTokens(
        token_ids=bytes(4 * count),
        log_probs=bytes(4 * count),
        versions=[VersionRun(version=version, token_count=count)],
    )
    return pb.TokenRun(key=key_to_pb(request(0)), offset=offset, tokens=tokens)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (pb.GenerateResponse(runs=[run_of(2, offset=1)]), "expected at 0"),
        (
            pb.GenerateResponse(runs=[pb.TokenRun(key=run_of(1).key, tokens=pb.GeneratedTokens(token_ids=b"1234"))]),
            "log-probs",
        ),
        (
            pb.GenerateResponse(
                runs=[run_of(2)],
                finished=[pb.FinishedSample(key=run_of(1).key, finish_reason=pb.FINISH_REASON_STOP, token_count=3)],
            ),
            "counts 3",
        ),
        (
            pb.GenerateResponse(runs=[run_of(2)], finished=[pb.FinishedSample(key=run_of(1).key, token_count=2)]),
            "finish reason",
        ),
    ],
)
async def test_a_server_that_contradicts_itself_is_not_believed(
    grpc_form: Form, response: pb.GenerateResponse, words: str
) -> None:
    client = await scripted(grpc_form, response)
    got, error = await outcome(client, [request(0)], 10)
    assert isinstance(error, CorruptDataError)
    assert words in error.message
    assert [completion.finish_reason for completion in got] == [FinishReason.FAILED]


async def test_an_unknown_refusal_and_foreign_keys_are_survived(grpc_form: Form) -> None:
    foreign = key_to_pb(request(77))
    client = await scripted(
        grpc_form,
        pb.GenerateResponse(finished=[pb.FinishedSample(key=foreign, finish_reason=pb.FINISH_REASON_STOP)]),
        pb.GenerateResponse(refused=[pb.RefusedSamples(keys=[run_of(1).key], reason="NEW_REASON", message="no")]),
    )
    with pytest.raises(InternalError, match="no"):
        await collect(client, [request(0)])


async def test_d6_a_server_that_never_answers_costs_the_deadline(grpc_form: Form) -> None:
    client = await scripted(grpc_form)
    for _ in range(2):  # the second call waits for the first one's key, and is bounded too
        got, error = await outcome(client, [request(0)], 0.2)
        assert isinstance(error, DeadlineError)
        assert error.metadata == {"unfinished_count": "1"}
        assert got == []


async def test_lower_terms_are_fenced_and_repeats_answered_once(grpc_form: Form, rollout_core: Any) -> None:
    client = await grpc_form.rollout(rollout_core)
    await client.pause("keep", mutation("pause", term=3))
    with pytest.raises(FencedError) as caught:
        await client.resume(mutation(term=2))
    assert caught.value.metadata["current_term"] == "3"
    assert (await client.status()).state == "paused"
    await client.resume(mutation("resume", term=3))
    await client.pause("keep", mutation("pause", term=3))  # a repeat: nothing is done again
    assert (await client.status()).state == "ready"


async def test_f8_a_leader_whose_term_is_over_gets_no_sample(grpc_form: Form, rollout_core: Any) -> None:
    """Also on a stream that it has open, and whoever took over need not speak on a stream of its own."""
    client = await grpc_form.rollout(rollout_core)
    old, new = (RolloutClient(client.address, leader=Leader("run-1", term)) for term in (1, 2))  # type: ignore[attr-defined]
    assert await collect(old, [request(0, max_tokens=2)])
    long = asyncio.create_task(collect(old, [request(1, max_tokens=4096)]))
    await until(rollout_core, lambda status: status.running_count == 1)
    await new.resume(mutation(term=2))
    for _ in ("on the open stream", "on another"):
        with pytest.raises(FencedError, match="term 2 leads now"):
            await collect(old, [request(2)])
    with pytest.raises(FencedError):
        await long
    await until(rollout_core, lambda status: status.running_count == 0)
    assert await collect(new, [request(2, max_tokens=2)])
    await old.close()
    await new.close()
