"""The clients and servicers of reward, reference and controller, over small cores of the tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import numpy as np
import pytest

from argosy.api.reward.v1 import reward_service_pb2 as reward_pb
from argosy.api.reward.v1 import reward_service_pb2_grpc
from argosy.controller import service as controller_service
from argosy.reference import service as reference_service
from argosy.reward import service as reward_service
from argosy.roles.controller import RunController
from argosy.roles.reference import Reference
from argosy.roles.reward import Reward
from argosy.rpc.clients.controller import ControllerClient
from argosy.rpc.clients.reference import ReferenceClient
from argosy.rpc.clients.reward import RewardClient
from argosy.rpc.options import RpcOptions
from argosy.rpc.retry import NO_RETRY, RetryPolicy
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import (
    CorruptDataError,
    InternalError,
    InvalidInputError,
    MessageTooLargeError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import (
    Abstained,
    Failed,
    Member,
    RewardCapabilities,
    RunStatus,
    ScaleChange,
    Scored,
    ScoreRequest,
    ScoreResult,
    ServerCount,
)

QUICK = RetryPolicy(first_backoff_s=0.01)


def items(count: int, **fields: Any) -> list[ScoreRequest]:
    return [
        ScoreRequest(SampleId(0, index, 0), "toy", "prompt", str(index), str(index), prompt_ids=(1,), **fields)
        for index in range(count)
    ]


class RewardCore:
    """Scores the sample's number; abstains on every third, fails on every fifth. Answers in reverse order."""

    def __init__(self, capabilities: RewardCapabilities) -> None:
        self.known = capabilities
        self.batches: list[list[ScoreRequest]] = []
        self.deadlines: list[float] = []
        self.errors: list[Exception] = []

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        if self.errors:
            raise self.errors.pop(0)
        self.batches.append(list(items))
        self.deadlines.append(deadline_s)
        return [ScoreResult(item.sample_id, self._outcome(int(item.response_text))) for item in reversed(items)]

    def _outcome(self, number: int) -> Scored | Abstained | Failed:
        if number % 5 == 4:
            return Failed("timeout", "took too long")
        return Abstained("odd one") if number % 3 == 2 else Scored(float(number), {"acc": number == 0}, (0.0, 1.5))

    async def capabilities(self) -> RewardCapabilities:
        return self.known


@pytest.fixture
async def reward(serve: Any) -> AsyncIterator[tuple[RewardCore, RewardClient]]:
    core = RewardCore(RewardCapabilities(("toy",), False, 4))
    server = await serve(lambda server, gate: reward_service.add_to_server(core, server, gate))
    client = RewardClient(server.address, member_id="reward-0", policy=QUICK)
    typed: tuple[Reward, Reward] = (core, client)  # both are what the loop takes
    assert typed
    yield core, client
    await client.close()


async def test_reward_outcomes_come_back_by_id_in_batches_that_the_server_takes(
    reward: tuple[RewardCore, RewardClient],
) -> None:
    core, client = reward
    asked = items(10)
    results = await client.score(asked, deadline_s=30)
    assert [result.sample_id for result in results] == [item.sample_id for item in asked]
    assert results[0].outcome == Scored(0.0, {"acc": True}, (0.0, 1.5))
    assert results[2].outcome == Abstained("odd one")
    assert results[4].outcome == Failed("timeout", "took too long")
    assert sorted(len(batch) for batch in core.batches) == [2, 4, 4]
    assert all(not item.prompt_ids for batch in core.batches for item in batch)
    assert all(0 < deadline <= 30 for deadline in core.deadlines)
    assert await client.score([], deadline_s=30) == []
    assert await client.capabilities() == core.known


async def test_reward_sends_ids_to_a_server_that_needs_them(serve: Any) -> None:
    core = RewardCore(RewardCapabilities(("*",), True, 256))
    server = await serve(lambda server, gate: reward_service.add_to_server(core, server, gate))
    client = RewardClient(server.address)
    await client.score(items(1), deadline_s=30)
    assert core.batches[0][0].prompt_ids == (1,)
    await client.close()


async def test_reward_sends_messages_to_a_server_that_needs_them(serve: Any) -> None:
    core = RewardCore(RewardCapabilities(("*",), needs_messages=True))
    server = await serve(lambda server, gate: reward_service.add_to_server(core, server, gate))
    client = RewardClient(server.address)
    asked = items(1, messages=({"role": "user", "content": "2+2?"},))
    await client.score(asked, deadline_s=30)
    assert core.batches[0][0].messages == asked[0].messages
    core.known = RewardCapabilities(("*",))
    assert not (await client.capabilities()).needs_messages
    await client.score(asked, deadline_s=30)
    assert core.batches[1][0].messages == ()
    await client.close()


@pytest.mark.parametrize("content", [float("nan"), float("inf"), "\ud800"])
async def test_reward_a_sample_that_can_not_be_sent_fails_alone(serve: Any, content: Any) -> None:
    core = RewardCore(RewardCapabilities(("*",), needs_messages=True))
    server = await serve(lambda server, gate: reward_service.add_to_server(core, server, gate))
    client = RewardClient(server.address, member_id="reward-0", policy=QUICK)
    good, bad = items(2)[1], items(1, messages=({"role": "tool", "content": content},))[0]
    results = await client.score([bad, good], deadline_s=30)
    assert [result.sample_id for result in results] == [bad.sample_id, good.sample_id]
    assert isinstance(results[0].outcome, Failed)
    assert "can't be sent" in results[0].outcome.message
    assert results[1].outcome == Scored(1.0, {"acc": False}, (0.0, 1.5))
    with pytest.raises(InvalidInputError, match="can't be sent"):
        await client.score([bad], deadline_s=30)
    await client.close()


async def test_reward_never_repeats_where_repeating_is_forbidden(serve: Any) -> None:
    core = RewardCore(RewardCapabilities(("*",), repeat_forbidden=True))
    server = await serve(lambda server, gate: reward_service.add_to_server(core, server, gate))
    client = RewardClient(server.address, policy=QUICK)
    core.errors = [UnavailableError("charged, then lost")]
    with pytest.raises(UnavailableError, match="charged, then lost"):
        await client.score(items(1), deadline_s=30)
    assert core.batches == []
    await client.close()


class Picky(RewardCore):
    """Has no room for one of the samples."""

    def __init__(self, error: Exception, **capabilities: Any) -> None:
        super().__init__(RewardCapabilities(("toy",), max_batch_size=4, **capabilities))
        self.error = error

    async def score(self, items: Sequence[ScoreRequest], *, deadline_s: float) -> list[ScoreResult]:
        if any(item.response_text == "5" for item in items):
            raise self.error
        return await super().score(items, deadline_s=deadline_s)


@pytest.mark.parametrize(
    ("error", "reason"), [(UnavailableError("gone"), "unavailable"), (InvalidInputError("odd"), "refused")]
)
async def test_reward_answers_of_other_requests_outlive_one_that_fails(
    serve: Any, error: Exception, reason: str
) -> None:
    core = Picky(error)
    server = await serve(lambda server, gate: reward_service.add_to_server(core, server, gate))
    client = RewardClient(server.address, policy=NO_RETRY)
    found = [result.outcome for result in await client.score(items(10), deadline_s=30)]
    assert [getattr(outcome, "reason", "") for outcome in found[4:8]] == [reason] * 4
    assert found[0] == Scored(0.0, {"acc": True}, (0.0, 1.5))
    assert found[9] == Failed("timeout", "took too long")
    with pytest.raises(type(error)):
        await client.score(items(10)[4:8], deadline_s=30)
    await client.close()


@pytest.mark.parametrize("forbidden", [False, True])
async def test_reward_a_request_that_is_too_large_may_be_sent_in_parts_unless_repeating_is_forbidden(
    serve: Any, *, forbidden: bool
) -> None:
    core = Picky(MessageTooLargeError("5 MB, the limit is 4 MB"), repeat_forbidden=forbidden)
    server = await serve(lambda server, gate: reward_service.add_to_server(core, server, gate))
    client = RewardClient(server.address, policy=NO_RETRY)
    if forbidden:
        found = await client.score(items(10), deadline_s=30)
        assert [getattr(result.outcome, "reason", "") for result in found[4:8]] == ["too_large"] * 4
    else:
        with pytest.raises(MessageTooLargeError):
            await client.score(items(10), deadline_s=30)
    await client.close()


async def test_reward_tries_again_after_overload_and_gives_up_on_a_defect(
    reward: tuple[RewardCore, RewardClient],
) -> None:
    core, client = reward
    core.errors = [OverloadedError("full", retry_after_s=0.05), UnavailableError("not yet")]
    assert len(await client.score(items(2), deadline_s=30)) == 2
    core.errors = [RuntimeError("a defect")]
    with pytest.raises(InternalError, match=r"reward-0 at .*RuntimeError: a defect"):
        await client.score(items(2), deadline_s=30)


async def test_reward_refuses_a_sample_that_is_there_twice(reward: tuple[RewardCore, RewardClient]) -> None:
    _, client = reward
    with pytest.raises(InvalidInputError, match="twice"):
        await client.score(items(1) * 2, deadline_s=30)


async def test_reward_refuses_more_items_than_it_takes(serve: Any) -> None:
    core = RewardCore(RewardCapabilities(("toy",), False, 4))
    server = await serve(lambda server, gate: reward_service.add_to_server(core, server, gate))
    client = RewardClient(server.address)
    assert (await client.capabilities()).max_batch_size == 4
    core.known = RewardCapabilities(("toy",), False, 3)
    with pytest.raises(InvalidInputError, match="4 items in one request, at most 3"):
        await client.score(items(4), deadline_s=30)
    await client.close()


class Careless(reward_service_pb2_grpc.RewardServiceServicer):
    """A foreign server with its own ideas: it answers with whatever it is told to."""

    def __init__(self, *results: reward_pb.ScoreResult) -> None:
        self.results = results

    async def Score(self, request: Any, context: Any) -> reward_pb.ScoreResponse:
        return reward_pb.ScoreResponse(results=self.results)

    async def GetCapabilities(self, request: Any, context: Any) -> reward_pb.GetCapabilitiesResponse:
        return reward_pb.GetCapabilitiesResponse()


async def careless(serve: Any, *results: reward_pb.ScoreResult) -> list[ScoreResult]:
    def add(server: grpc.aio.Server, gate: object) -> list[str]:
        reward_service_pb2_grpc.add_RewardServiceServicer_to_server(Careless(*results), server)
        return []

    server = await serve(add)
    client = RewardClient(server.address, member_id="reward-7")
    try:
        return await client.score(items(2), deadline_s=30)
    finally:
        await client.close()


def scored(position: int) -> reward_pb.ScoreResult:
    result = reward_pb.ScoreResult(scored=reward_pb.Scored(score=0.0))
    result.sample_id.position = position
    return result


async def test_a_careless_reward_server_fails_a_sample_or_is_found_out(serve: Any) -> None:
    first, second = await careless(serve, scored(1))
    assert isinstance(first.outcome, Failed)
    assert first.outcome.reason == "bad_return"
    assert second.outcome == Scored(0.0)
    with pytest.raises(InternalError, match=r"reward-7 .* judged sample e0-p5-k0-a0 without being asked"):
        await careless(serve, scored(0), scored(1), scored(5))
    with pytest.raises(InternalError, match="sample e0-p1-k0-a0 twice"):
        await careless(serve, scored(1), scored(1))


class ReferenceCore:
    """Log-prob = -id × temperature; answers with the rows in reverse order."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], tuple[str, ...], float]] = []
        self.leave_out: set[str] = set()
        self.errors: list[Exception] = []

    async def compute_log_probs(
        self, batch: TrajectoryBatch, columns: Sequence[str], *, temperature: float, deadline_s: float
    ) -> TrajectoryBatch:
        self.asked.append((batch.columns, tuple(columns), temperature))
        if self.errors:
            raise self.errors.pop(0)
        ids = batch.ragged("response_ids")
        values = Ragged((ids.values * -temperature).astype(np.float32), ids.offsets)
        for name in columns:
            batch = batch.with_column(name, values)
        return batch.select(np.arange(len(batch))[::-1])


def batch_of(rows: int, tokens: int = 3) -> TrajectoryBatch:
    ids = [SampleId(0, index, 0) for index in range(rows)]
    responses: Any = [np.arange(index, index + tokens) for index in range(rows)]
    batch = TrajectoryBatch.build(ids, [[1, 2]] * rows, responses)
    return batch.with_column("advantages", Ragged.from_rows(responses, np.float32))


@pytest.fixture
async def reference(serve: Any) -> AsyncIterator[tuple[ReferenceCore, ReferenceClient]]:
    core = ReferenceCore()
    server = await serve(lambda server, gate: reference_service.add_to_server(core, server, gate))
    client = ReferenceClient(server.address, member_id="reference-0", policy=QUICK)
    typed: tuple[Reference, Reference] = (core, client)
    assert typed
    yield core, client
    await client.close()


async def test_reference_sends_what_is_needed_and_brings_the_columns(
    reference: tuple[ReferenceCore, ReferenceClient],
) -> None:
    core, client = reference
    batch = batch_of(5)
    result = await client.compute_log_probs(batch, ["log_probs", "entropy"], temperature=0.5, deadline_s=30)
    assert core.asked == [(["sample_id", "prompt_ids", "response_ids", "response_mask"], ("log_probs", "entropy"), 0.5)]
    by_id = dict(zip(result.sample_ids, result.ragged("log_probs"), strict=True))
    for sample, ids in zip(batch.sample_ids, batch.ragged("response_ids"), strict=True):
        np.testing.assert_array_equal(by_id[sample], ids * np.float32(-0.5))
    assert result.columns == ["sample_id", "response_ids", "log_probs", "entropy"]


async def test_reference_takes_batches_above_the_message_limit_and_empty_ones(serve: Any) -> None:
    options = RpcOptions(max_message_bytes=2 << 20)
    server = await serve(
        lambda server, gate: reference_service.add_to_server(ReferenceCore(), server, gate), options=options
    )
    client = ReferenceClient(server.address, options=options)
    large = batch_of(10, 250_000)  # 12 MB
    result = await client.compute_log_probs(large, ["log_probs"], temperature=1.0, deadline_s=60)
    assert len(result.ragged("log_probs").values) == 2_500_000
    empty = await client.compute_log_probs(batch_of(1).select([]), ["log_probs"], temperature=1.0, deadline_s=30)
    assert len(empty) == 0
    await client.close()


async def test_reference_tries_again_and_passes_errors_on(reference: tuple[ReferenceCore, ReferenceClient]) -> None:
    core, client = reference
    core.errors = [UnavailableError("loading")]
    assert len(await client.compute_log_probs(batch_of(2), ["log_probs"], temperature=1.0, deadline_s=30)) == 2
    core.errors = [InvalidInputError("unknown column 'x'", field="columns")]
    with pytest.raises(InvalidInputError, match=r"reference-0 at .*unknown column 'x'"):
        await client.compute_log_probs(batch_of(2), ["x"], temperature=1.0, deadline_s=30)


async def test_reference_answers_for_other_samples_are_found_out(serve: Any) -> None:
    class Wrong(ReferenceCore):
        async def compute_log_probs(self, batch: TrajectoryBatch, *args: Any, **kwargs: Any) -> TrajectoryBatch:
            return await super().compute_log_probs(batch_of(3), *args, **kwargs)

    server = await serve(lambda server, gate: reference_service.add_to_server(Wrong(), server, gate))
    client = ReferenceClient(server.address)
    with pytest.raises(CorruptDataError, match="other samples than the 2"):
        await client.compute_log_probs(batch_of(2), ["log_probs"], temperature=1.0, deadline_s=30)
    await client.close()


class Run:
    """A controller with one run."""

    def __init__(self) -> None:
        self.state = "running"
        self.changed = asyncio.Condition()
        self.calls: list[str] = []

    async def get_run(self) -> RunStatus:
        version = PolicyVersion("main", 3, "d")
        return RunStatus("run-1", self.state, 3, 10, 7, version, "rollout", {"reward/mean": 0.0})

    async def watch_run(self) -> AsyncIterator[RunStatus]:
        while True:
            yield await self.get_run()
            if self.state == "finished":
                return
            async with self.changed:
                await self.changed.wait()

    async def list_members(self, role: str = "") -> list[Member]:
        members = [Member("reward-0", "reward", "h:1", "x"), Member("rollout-0", "rollout", "h:2", "y")]
        return [member for member in members if role in ("", member.role)]

    async def _set(self, call: str, state: str) -> RunStatus:
        self.calls.append(call)
        self.state = state
        async with self.changed:
            self.changed.notify_all()
        return await self.get_run()

    async def pause(self) -> RunStatus:
        return await self._set("pause", "paused")

    async def resume(self) -> RunStatus:
        return await self._set("resume", "running")

    async def stop(self, reason: str = "") -> RunStatus:
        return await self._set(f"stop: {reason}", "finished")

    async def scale(self, wanted: Sequence[ServerCount]) -> list[ScaleChange]:
        return [ScaleChange(one.role, one.pool or "default", 1, one.count, ("rollout-1",), ()) for one in wanted]


async def test_controller_shows_and_steers_its_run(serve: Any) -> None:
    run = Run()
    server = await serve(lambda server, gate: controller_service.add_to_server(run, server, gate))
    server.gate.terms.adopt("run-1", 7)  # people have no term, and are not fenced
    client = ControllerClient(server.address)
    typed: tuple[RunController, RunController] = (run, client)
    assert typed
    assert await client.get_run() == await run.get_run()
    assert [member.member_id for member in await client.list_members()] == ["reward-0", "rollout-0"]
    assert await client.list_members("reward") == await run.list_members("reward")
    wanted = [ServerCount("rollout", 2)]
    assert list(await client.scale(wanted)) == list(await run.scale(wanted))

    seen: asyncio.Queue[str] = asyncio.Queue()

    async def watch() -> None:
        async for state in client.watch_run():
            seen.put_nowait(state.state)

    watching = asyncio.create_task(watch())
    assert await seen.get() == "running"
    assert (await client.pause()).state == "paused"
    assert await seen.get() == "paused"
    assert (await client.resume()).state == "running"
    assert (await client.stop("enough")).state == "finished"
    await asyncio.wait_for(watching, 5)
    assert run.calls == ["pause", "resume", "stop: enough"]
    assert [seen.get_nowait() for _ in range(seen.qsize())][-1] == "finished"
    await client.close()


async def test_controller_refuses_another_run_s_requests(serve: Any) -> None:
    from argosy.api.common.v1 import context_pb2
    from argosy.api.controller.v1 import controller_service_pb2, controller_service_pb2_grpc
    from argosy.rpc.channel import Caller

    run = Run()
    server = await serve(lambda server, gate: controller_service.add_to_server(run, server, gate))
    caller = Caller(server.address)
    stub: Any = controller_service_pb2_grpc.ControllerServiceStub(caller.channel)
    context = context_pb2.RequestContext(run_id="run-2", request_id="a")
    with pytest.raises(NotFoundError, match="leads run 'run-1', not 'run-2'"):
        await caller.unary(
            stub.StopRun, lambda left_s: controller_service_pb2.StopRunRequest(context=context), deadline_s=10
        )
    assert run.calls == []
    await caller.close()


async def test_watching_a_controller_that_goes_away_is_an_error(serve: Any) -> None:
    server = await serve(lambda server, gate: controller_service.add_to_server(Run(), server, gate))
    client = ControllerClient(server.address)
    states = client.watch_run()
    assert (await anext(states)).state == "running"
    await server.stop(0)
    with pytest.raises(UnavailableError):
        await anext(states)
    await client.close()
