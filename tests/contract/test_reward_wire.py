"""The reward service over the wire: it keeps its own contract, and cases F1, F2, F11 and F15 of its server's side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from argosy.api.common.v1 import context_pb2, ids_pb2, values_pb2
from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.api.reward.v1.reward_service_pb2_grpc import RewardServiceStub
from argosy.reward.conformance import Result, check_server, describe, failures
from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.custom import CustomFunction
from argosy.reward.pool import PoolOptions
from argosy.reward.service import add_to_server
from argosy.rpc.channel import open_channel
from argosy.rpc.clients.reward import RewardClient
from argosy.rpc.codec.reward import capabilities_from_pb
from argosy.rpc.server import RpcServer
from argosy.types.errors import MessageTooLargeError
from argosy.types.ids import SampleId
from argosy.types.records import Failed, RewardCapabilities, Scored, ScoreRequest

if TYPE_CHECKING:
    from argosy.api.reward.v1.reward_service_pb2_grpc import RewardServiceAsyncStub

Make = Callable[..., RewardScorers]
SIZES = [4_194_303, 4_194_305, 20_000_000]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Scorers of a function's source (None: the built-in ones), ended with the test."""
    made: list[RewardScorers] = []

    def start(source: str | None, **options: Any) -> RewardScorers:
        path = tmp_path / f"reward{len(made)}.py"
        path.write_text(source or "")
        function = None if source is None else CustomFunction(str(path), "f")
        made.append(RewardScorers(RewardOptions(PoolOptions(**{"worker_count": 1} | options), function)))
        return made[-1]

    yield start
    for scorers in made:
        scorers.shutdown()


@asynccontextmanager
async def served(core: Any) -> AsyncIterator[str]:
    server = RpcServer.listen("127.0.0.1")
    await server.start()
    await server.serve(add_to_server(core, server.server, server.gate))
    try:
        yield server.address
    finally:
        await server.stop(0)


def item(k: int, response: str = "", **fields: Any) -> ScoreRequest:
    return ScoreRequest(SampleId(0, 0, k), "toy", "", response, fields.pop("truth", None), **fields)


@pytest.mark.parametrize("source", [None, "def f(solution_str, **kwargs):\n    return solution_str[-1:] == '4'\n"])
async def test_our_own_service_keeps_the_contract(make: Make, source: str | None) -> None:
    async with served(make(source)) as address:
        findings = await check_server(address, timeout_s=60)
    assert not failures(findings), describe(findings)
    assert not [finding for finding in findings if finding.result is Result.WARNED], describe(findings)


@pytest.mark.parametrize("size", SIZES)
async def test_f1_a_large_sample_is_scored(make: Make, size: int) -> None:
    core = make("def f(solution_str, ground_truth, **kwargs):\n    return len(solution_str) + len(ground_truth)\n")
    async with served(core) as address:
        client = RewardClient(address)
        [result] = await client.score([item(0, "x" * (size - 5), truth="12345")], deadline_s=60)
        await client.close()
    assert result.outcome == Scored(float(size))


async def test_f1_an_over_limit_sample_fails_at_once_and_names_the_limit() -> None:
    class Counts:
        calls = 0

        async def capabilities(self) -> RewardCapabilities:
            return RewardCapabilities(("*",))

        async def score(self, items: Any, *, deadline_s: float) -> Any:
            self.calls += 1
            return []

    core = Counts()
    async with served(core) as address:
        client = RewardClient(address)
        began = time.monotonic()
        with pytest.raises(MessageTooLargeError, match="67108864 bytes"):
            await client.score([item(0, "x" * (64 << 20))], deadline_s=60)
        await client.close()
    assert time.monotonic() - began < 20
    assert core.calls == 0


async def test_f1_a_sample_too_large_for_a_worker_fails_alone(make: Make) -> None:
    core = make("def f(solution_str, **kwargs):\n    return 1\n")
    async with served(core) as address:
        client = RewardClient(address)
        results = await client.score([item(0, "x" * (33 << 20)), item(1, "fine")], deadline_s=60)
        await client.close()
    assert isinstance(results[0].outcome, Failed)
    assert results[0].outcome.reason == "too_large"
    assert "33554432" in results[0].outcome.message
    assert results[1].outcome == Scored(1.0)


async def test_f2_a_reward_function_may_fork_and_run_programs_while_grpc_serves(make: Make) -> None:
    source = """
import multiprocessing, subprocess

def double(x):
    return 2 * x

def f(solution_str, **kwargs):
    if solution_str == "fork":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return sum(pool.map(double, range(10)))
    return sum(subprocess.run(["true"]).returncode == 0 for _ in range(20))
"""
    async with served(make(source, timeout_s=60)) as address:
        client = RewardClient(address)
        items = [item(k, "fork" if k == 5 else "run") for k in range(11)]
        results = await client.score(items, deadline_s=120)
        await client.close()
    scores = [result.outcome.score for result in results if isinstance(result.outcome, Scored)]
    assert scores == [20.0] * 5 + [90.0] + [20.0] * 5


def without_fields(message: type[Any], *names: str) -> type[Any]:
    """The message class as it was before it had these fields: what an old program knows."""
    pool = descriptor_pool.DescriptorPool()
    for module in ("google/protobuf/duration.proto",):
        pool.AddSerializedFile(descriptor_pool.Default().FindFileByName(module).serialized_pb)
    for known in (ids_pb2, values_pb2, context_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    for entry in file.message_type:
        if entry.name == message.DESCRIPTOR.name:
            kept = [field for field in entry.field if field.name not in names]
            assert len(kept) == len(entry.field) - len(names)
            del entry.field[:]
            entry.field.extend(kept)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(message.DESCRIPTOR.full_name))


def test_f11_old_and_new_programs_understand_each_other() -> None:
    old_item = without_fields(pb.ScoreItem, "messages_json")
    new = pb.ScoreItem(data_source="toy", ground_truth_text="", messages_json="[]", truncated=False)
    read = old_item.FromString(new.SerializeToString())
    assert (read.data_source, read.WhichOneof("ground_truth")) == ("toy", "ground_truth_text")
    assert pb.ScoreItem.FromString(read.SerializeToString()) == new  # what it didn't know passed through whole
    assert pb.ScoreItem.FromString(old_item(data_source="toy").SerializeToString()).messages_json == ""
    old_answer = without_fields(
        pb.GetCapabilitiesResponse, "needs_messages", "repeat_forbidden", "name", "version"
    )(data_sources=["*"])  # fmt: skip
    known = capabilities_from_pb(pb.GetCapabilitiesResponse.FromString(old_answer.SerializeToString()))
    assert known == RewardCapabilities(("*",))


async def test_f11_zero_false_and_empty_reach_the_function_as_they_are(make: Make) -> None:
    source = "def f(solution_str, ground_truth, extra_info, **kwargs):\n    return {'score': 0, 'seen': repr((solution_str, ground_truth, extra_info))}\n"  # noqa: E501
    truths: list[Any] = [None, "", 0, False, 0.0, [], {}, "null"]
    async with served(make(source)) as address:
        client = RewardClient(address)
        items = [item(k, "", truth=truth, extra_info={"n": 0, "b": False}) for k, truth in enumerate(truths)]
        results = await client.score(items, deadline_s=30)
        await client.close()
    for result, truth in zip(results, truths, strict=True):
        assert isinstance(result.outcome, Scored)
        assert result.outcome.score == 0.0
        assert result.outcome.parts["seen"] == repr(("", truth, {"n": 0, "b": False}))


async def test_f15_what_was_sent_twice_at_once_has_one_answer_each(make: Make) -> None:
    source = "import time\ndef f(solution_str, **kwargs):\n    time.sleep(0.05)\n    return len(solution_str)\n"
    async with served(make(source, worker_count=2)) as address, open_channel(address) as channel:
        stub = cast("RewardServiceAsyncStub", RewardServiceStub(channel))
        request = pb.ScoreRequest(
            items=[pb.ScoreItem(sample_id=ids_pb2.SampleId(k=k), response_text="x" * k) for k in range(4)]
        )
        answers = await asyncio.gather(*(stub.Score(request, timeout=30) for _ in range(4)))
    for answer in answers:
        assert [(result.sample_id.k, result.scored.score) for result in answer.results] == [(k, k) for k in range(4)]


async def test_f15_a_call_whose_deadline_passed_is_not_worked_on(make: Make, tmp_path: Path) -> None:
    note = tmp_path / "calls"
    source = (
        f"import time\ndef f(solution_str, **kwargs):\n    open({str(note)!r}, 'a').write(solution_str)\n"
        "    time.sleep(0.2)\n    return 1\n"
    )
    async with served(make(source)) as address, open_channel(address) as channel:
        stub = cast("RewardServiceAsyncStub", RewardServiceStub(channel))

        def request(text: str) -> pb.ScoreRequest:
            return pb.ScoreRequest(
                items=[pb.ScoreItem(sample_id=ids_pb2.SampleId(k=k), response_text=text) for k in range(60)]
            )

        # The server has the same deadline, and may answer a moment before it: then most have failed.
        [late] = await asyncio.gather(stub.Score(request("a"), timeout=0.5), return_exceptions=True)
        if isinstance(late, grpc.aio.AioRpcError):
            assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        else:
            assert isinstance(late, pb.ScoreResponse)
            assert late.failed_count > 30
        began = time.monotonic()
        one = pb.ScoreRequest(items=[pb.ScoreItem(response_text="b")])
        assert (await stub.Score(one, timeout=30)).results[0].scored.score == 1
    assert time.monotonic() - began < 20  # a hang guard
    assert note.read_text().count("a") < 30  # of 60
