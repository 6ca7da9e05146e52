"""Fencing, and mutations that are done once (case F15), over real calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

import grpc
import numpy as np
import pytest

from argosy.api.common.v1 import context_pb2
from argosy.api.trainer.v1 import objective_pb2
from argosy.api.trainer.v1 import trainer_service_pb2 as pb
from argosy.api.trainer.v1.trainer_service_pb2_grpc import (
    TrainerServiceServicer,
    TrainerServiceStub,
    add_TrainerServiceServicer_to_server,
)
from argosy.rpc.channel import Caller, iter_async
from argosy.rpc.chunking import batch_parts, collect_batch, read_start
from argosy.rpc.codec.common import mutation_to_pb
from argosy.rpc.gate import Answers, Gate, Terms
from argosy.rpc.retry import RetryPolicy
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import (
    DeadlineError,
    FencedError,
    InvalidInputError,
    OverloadedError,
    StateError,
    UnavailableError,
)
from argosy.types.ids import SampleId
from argosy.types.records import Mutation

if TYPE_CHECKING:
    from argosy.api.trainer.v1.trainer_service_pb2_grpc import TrainerServiceAsyncStub


class Trainer(TrainerServiceServicer):
    """Applies a step, then takes as long as it is told to before it answers."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.step = 0
        self.rows = 0
        self.answer_after_s = 0.0
        self.errors: list[Exception] = []

    async def OptimStep(self, request: pb.OptimStepRequest, context: Any) -> pb.OptimStepResponse:
        async def work(ctx: Mutation) -> pb.OptimStepResponse:
            if self.errors:
                raise self.errors.pop(0)
            self.step += 1
            result = objective_pb2.StepResult(step=self.step)
            await asyncio.sleep(self.answer_after_s)
            return pb.OptimStepResponse(context=self.gate.respond(), result=result)

        return await self.gate.mutate("OptimStep", request.context, context, work)

    async def Update(self, request_iterator: AsyncIterator[pb.UpdateRequest], context: Any) -> pb.UpdateResponse:
        start, parts = await read_start(request_iterator)

        async def work(ctx: Mutation, batch: TrajectoryBatch) -> pb.UpdateResponse:
            self.step += 1
            self.rows += len(batch)
            result = objective_pb2.StepResult(step=self.step)
            await asyncio.sleep(self.answer_after_s)
            return pb.UpdateResponse(context=self.gate.respond(), result=result)

        return await self.gate.mutate_upload("Update", start.context, context, lambda: collect_batch(parts), work)

    async def LoadCheckpoint(self, request: pb.LoadCheckpointRequest, context: Any) -> pb.LoadCheckpointResponse:
        async def work(ctx: Mutation) -> pb.LoadCheckpointResponse:
            self.step = 0
            return pb.LoadCheckpointResponse(context=self.gate.respond())

        return await self.gate.mutate("LoadCheckpoint", request.context, context, work, resets=True)

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        self.gate.admit(request.context)
        return pb.GetStatusResponse(context=self.gate.respond())


class Client:
    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.stub = cast("TrainerServiceAsyncStub", TrainerServiceStub(caller.channel))

    async def optim_step(self, ctx: Mutation, *, policy: RetryPolicy | None = None) -> int:
        response = await self.caller.unary(
            self.stub.OptimStep,
            lambda left_s: pb.OptimStepRequest(context=mutation_to_pb(ctx, deadline_s=left_s)),
            deadline_s=ctx.deadline_s,
            policy=policy,
        )
        assert response.context.member_id == "test-0"
        return response.result.step

    async def update(self, ctx: Mutation, *, policy: RetryPolicy | None = None, parts: int | None = None) -> int:
        ids = [SampleId(0, index, 0) for index in range(5)]
        batch = TrajectoryBatch.build(ids, [[1]] * 5, [[2, 3]] * 5)

        def messages(left_s: float) -> Any:
            yield pb.UpdateRequest(start=pb.UpdateStart(context=mutation_to_pb(ctx, deadline_s=left_s)))
            for part in list(batch_parts(batch))[:parts]:
                yield pb.UpdateRequest(payload=part)

        response = await self.caller.upload(self.stub.Update, messages, deadline_s=ctx.deadline_s, policy=policy)
        return response.result.step

    async def load(self, ctx: Mutation) -> None:
        request = pb.LoadCheckpointRequest(context=mutation_to_pb(ctx), path="x")
        await self.caller.unary(self.stub.LoadCheckpoint, lambda left_s: request, deadline_s=ctx.deadline_s)


@pytest.fixture
async def pair(serve: Any) -> AsyncIterator[tuple[Trainer, Client]]:
    gate = Gate("test-0")
    trainer = Trainer(gate)  # type: ignore[abstract]

    def add(server: grpc.aio.Server, gate: object) -> list[str]:
        add_TrainerServiceServicer_to_server(trainer, server)
        return []

    server = await serve(add, gate=gate)
    caller = Caller(server.address, what="trainer-0", policy=RetryPolicy(first_backoff_s=0.01))
    yield trainer, Client(caller)
    await caller.close()


def mutation(
    request_id: str = "run/optim/1", *, term: int = 1, deadline_s: float = 30.0, run_id: str = "run"
) -> Mutation:
    return Mutation(run_id, term, request_id, deadline_s)


async def eventually(condition: Any) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about in 5 s")


@pytest.mark.parametrize("call", ["optim_step", "update"])
async def test_f15_a_step_that_outlives_its_deadlines_is_done_once_and_its_result_is_returned(
    pair: tuple[Trainer, Client], call: str
) -> None:
    trainer, client = pair
    trainer.answer_after_s = 0.5
    policy = RetryPolicy(max_attempts=4, attempt_timeout_s=0.2, first_backoff_s=0.01)
    assert await getattr(client, call)(mutation(), policy=policy) == 1
    assert trainer.step == 1
    assert await getattr(client, call)(mutation()) == 1  # the stored result, long after


async def test_f15_when_the_total_deadline_passes_the_step_still_counts_once(pair: tuple[Trainer, Client]) -> None:
    trainer, client = pair
    trainer.answer_after_s = 0.6
    began = asyncio.get_running_loop().time()
    policy = RetryPolicy(max_attempts=3, attempt_timeout_s=0.15, first_backoff_s=0.01)
    with pytest.raises(DeadlineError):
        await client.optim_step(mutation(deadline_s=0.4), policy=policy)
    assert asyncio.get_running_loop().time() - began < 0.6  # three tries, one total deadline
    assert await client.optim_step(mutation()) == 1
    assert trainer.step == 1


async def test_f15_a_client_that_goes_away_leaves_the_step_done_and_stored(pair: tuple[Trainer, Client]) -> None:
    trainer, client = pair
    trainer.answer_after_s = 0.2
    call = asyncio.ensure_future(client.optim_step(mutation()))
    await eventually(lambda: trainer.step == 1)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert await client.optim_step(mutation()) == 1
    assert trainer.step == 1


async def test_f15_concurrent_repeats_wait_for_the_first(pair: tuple[Trainer, Client]) -> None:
    trainer, client = pair
    trainer.answer_after_s = 0.1
    assert await asyncio.gather(*(client.update(mutation()) for _ in range(8))) == [1] * 8
    assert (trainer.step, trainer.rows) == (1, 5)


async def test_f15_an_upload_that_its_client_abandons_changes_nothing(pair: tuple[Trainer, Client]) -> None:
    trainer, client = pair

    async def half() -> AsyncIterator[pb.UpdateRequest]:
        yield pb.UpdateRequest(start=pb.UpdateStart(context=mutation_to_pb(mutation())))
        await asyncio.sleep(30)

    call = client.stub.Update(half())
    await asyncio.sleep(0.1)
    call.cancel()
    await asyncio.sleep(0.1)
    assert trainer.step == 0
    assert await client.update(mutation()) == 1


async def test_an_upload_cut_short_is_refused_and_changes_nothing(pair: tuple[Trainer, Client]) -> None:
    trainer, client = pair
    with pytest.raises(Exception, match="cut short"):
        await client.update(mutation(), parts=2)
    assert trainer.step == 0


async def test_errors_are_not_stored_and_unavailable_is_tried_again(pair: tuple[Trainer, Client]) -> None:
    trainer, client = pair
    trainer.errors = [UnavailableError("warming up"), OverloadedError("full", retry_after_s=0.05)]
    assert await client.optim_step(mutation()) == 1
    trainer.errors = [StateError("paused")]
    with pytest.raises(StateError):
        await client.optim_step(mutation("run/optim/2"))
    assert await client.optim_step(mutation("run/optim/2")) == 2


async def test_other_ids_runs_and_expected_steps_are_other_work(pair: tuple[Trainer, Client]) -> None:
    _, client = pair
    assert await client.optim_step(mutation("a")) == 1
    assert await client.optim_step(mutation("b")) == 2
    assert await client.optim_step(mutation("a", run_id="other")) == 3
    assert await client.optim_step(Mutation("run", 1, "a", 30.0, expected_step=0)) == 4
    assert await client.optim_step(mutation("a")) == 1


async def test_a_restore_and_a_new_term_forget_the_stored_answers(pair: tuple[Trainer, Client]) -> None:
    _, client = pair
    assert await client.optim_step(mutation("a")) == 1
    await client.load(mutation("load"))
    assert await client.optim_step(mutation("a")) == 1
    assert await client.optim_step(mutation("a", term=2)) == 2


async def test_a_lower_term_is_fenced_and_a_higher_one_adopted(pair: tuple[Trainer, Client]) -> None:
    trainer, client = pair
    assert await client.optim_step(mutation("a", term=5)) == 1
    for call in (client.optim_step, client.update):
        with pytest.raises(FencedError) as caught:
            await call(mutation("b", term=4))
        assert caught.value.metadata["current_term"] == "5"
    assert trainer.step == 1
    assert await client.optim_step(mutation("b", term=1, run_id="other")) == 2
    with pytest.raises(grpc.aio.AioRpcError, match="term 4"):
        await client.stub.GetStatus(pb.GetStatusRequest(context=context_pb2.RequestContext(run_id="run", term=4)))
    await client.stub.GetStatus(pb.GetStatusRequest())


async def test_a_leader_that_comes_while_an_upload_runs_fences_it(pair: tuple[Trainer, Client]) -> None:
    trainer, client = pair
    release = asyncio.Event()
    ids = [SampleId(0, 0, 0)]
    batch = TrajectoryBatch.build(ids, [[1]], [[2]])

    async def slow() -> AsyncIterator[pb.UpdateRequest]:
        yield pb.UpdateRequest(start=pb.UpdateStart(context=mutation_to_pb(mutation(term=1))))
        await release.wait()
        async for message in iter_async([pb.UpdateRequest(payload=part) for part in batch_parts(batch)]):
            yield message

    call = client.stub.Update(slow())
    await eventually(lambda: trainer.gate.terms.current("run") == 1)
    assert await client.optim_step(mutation("b", term=2)) == 1
    release.set()
    with pytest.raises(grpc.aio.AioRpcError, match="term 1"):
        await call
    assert trainer.step == 1


@pytest.mark.parametrize("field", ["run_id", "request_id"])
async def test_a_mutation_without_its_ids_is_refused(pair: tuple[Trainer, Client], field: str) -> None:
    _, client = pair
    ctx = mutation() if field == "request_id" else mutation(run_id="")
    ctx = Mutation(ctx.run_id, 1, "" if field == "request_id" else "a", 30.0)
    with pytest.raises(InvalidInputError, match=f"context.{field}"):
        await client.optim_step(ctx)


async def test_a_call_whose_deadline_had_passed_does_nothing(pair: tuple[Trainer, Client]) -> None:
    trainer, client = pair
    with pytest.raises(grpc.aio.AioRpcError, match="deadline had passed"):
        await client.stub.OptimStep(pb.OptimStepRequest(context=mutation_to_pb(mutation(deadline_s=0.0))))
    assert trainer.step == 0


async def test_too_many_mutations_in_flight_are_refused(serve: Any) -> None:
    gate = Gate("test-0", max_in_flight=2)
    trainer = Trainer(gate)  # type: ignore[abstract]
    trainer.answer_after_s = 0.5

    def add(server: grpc.aio.Server, gate: object) -> list[str]:
        add_TrainerServiceServicer_to_server(trainer, server)
        return []

    server = await serve(add, gate=gate)
    caller = Caller(server.address)
    client = Client(caller)
    running = [asyncio.ensure_future(client.optim_step(mutation(str(index)))) for index in range(2)]
    await eventually(lambda: trainer.step == 2)
    with pytest.raises(OverloadedError):
        await client.optim_step(mutation("third"), policy=RetryPolicy(max_attempts=1))
    assert sorted(await asyncio.gather(*running)) == [1, 2]
    await caller.close()


async def test_drain_waits_for_abandoned_mutations(pair: tuple[Trainer, Client]) -> None:
    trainer, client = pair
    trainer.answer_after_s = 0.2
    call = asyncio.ensure_future(client.optim_step(mutation()))
    await eventually(lambda: trainer.step == 1)
    call.cancel()
    await trainer.gate.drain(5)
    assert await client.optim_step(mutation()) == 1


def test_answers_are_bounded_by_count_and_by_bytes() -> None:
    answers = Answers(max_count=3, max_bytes=1000)
    for index in range(5):
        answers.put(("run", index), context_pb2.ResponseContext(member_id="x"))
    assert [answers.get(("run", index)) is not None for index in range(5)] == [False, False, True, True, True]
    answers.put(("run", "big"), context_pb2.ResponseContext(member_id="x" * 2000))
    assert answers.get(("run", "big")) is None
    answers.put(("other", "large"), context_pb2.ResponseContext(member_id="x" * 995))
    assert len(answers) == 1
    answers.forget("other")
    assert answers.get(("other", "large")) is None


def test_terms_are_bounded_and_per_run() -> None:
    terms = Terms()
    assert terms.adopt("a", 3)
    assert not terms.adopt("a", 3)
    for index in range(100):
        terms.adopt(f"run-{index}", int(np.int64(1)))
    assert terms.current("run-99") == 1
    assert terms.current("a") == 0
