"""One trace per step, through two real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from argosy.telemetry.traces import setup_tracing, span

SERVER = Path(__file__).parent / "trace_server.py"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def numbers() -> AsyncIterator[bytes]:
    for number in range(3):
        yield bytes([number])


async def test_one_trace_per_step_through_unary_streams_and_bidi(tmp_path: Path) -> None:
    server = subprocess.Popen(  # noqa: ASYNC220 - it starts once, before anything else is to run
        [sys.executable, str(SERVER), str(tmp_path / "server.jsonl")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    assert server.stdin is not None
    address = f"127.0.0.1:{server.stdout.readline().strip()}"
    tracing = setup_tracing("controller-0", run_id="r1", path=tmp_path / "controller.jsonl")
    async with grpc.aio.insecure_channel(address) as opened:
        channel: Any = opened  # its types want serializers; ours are bytes
        health: Any = health_pb2_grpc.HealthStub(opened)
        for number in range(2):
            with span("step", step=number):
                await health.Check(health_pb2.HealthCheckRequest())
                assert await channel.unary_unary("/test.Echo/Unary")(b"x") == b"x"
                assert [part async for part in channel.unary_stream("/test.Echo/Down")(b"x")] == [b"x"] * 3
                assert await channel.stream_unary("/test.Echo/Up")(numbers()) == b"\x00\x01\x02"
                echoed = channel.stream_stream("/test.Echo/Both")(numbers())
                assert [part async for part in echoed] == [b"\0", b"\1", b"\2"]
                with pytest.raises(grpc.aio.AioRpcError):
                    await channel.unary_unary("/test.Echo/Unary")(b"refuse")
    tracing.shutdown()
    server.stdin.close()
    server.wait(20)
    server.stdout.close()
    ours, theirs = read(tmp_path / "controller.jsonl"), read(tmp_path / "server.jsonl")
    steps = {record["attributes"]["argosy.step"]: record for record in ours if record["name"] == "step"}
    assert steps[0]["trace_id"] != steps[1]["trace_id"]
    for step in steps.values():
        calls = {record["span_id"]: record for record in ours if record["parent_id"] == step["span_id"]}
        handled = [record for record in theirs if record["parent_id"] in calls]
        methods = sorted(record["name"].rpartition("/")[2] for record in handled)
        assert methods == ["Both", "Down", "Unary", "Unary", "Up"]
        assert {record["trace_id"] for record in [*calls.values(), *handled]} == {step["trace_id"]}
        work = [record for record in theirs if record["name"] == "work" and record["trace_id"] == step["trace_id"]]
        assert len(work) == 1
        assert work[0]["parent_id"] in {record["span_id"] for record in handled}
        assert [record["status"] for record in handled].count("ERROR") == 1
        assert [record["status"] for record in calls.values()].count("ERROR") == 1
    assert not [record for record in ours + theirs if "Health" in record["name"]]
