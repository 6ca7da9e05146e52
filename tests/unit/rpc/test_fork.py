"""Case F2: fork after gRPC has begun to run. In programs of their own, so that a hang would not be this process's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = '''
import asyncio, concurrent.futures, multiprocessing, subprocess, sys
from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.api.reward.v1.reward_service_pb2_grpc import (
    RewardServiceServicer, RewardServiceStub, add_RewardServiceServicer_to_server,
)
from argosy.rpc.channel import Caller
from argosy.rpc.fork import process_context
from argosy.rpc.server import RpcServer

class Service(RewardServiceServicer):
    async def Score(self, request, context):
        """200 subprocess runs from inside a handler, both ways."""
        count = 0
        for index in range(100):
            process = await asyncio.create_subprocess_exec("true")
            count += await process.wait() == 0
            count += (await asyncio.to_thread(subprocess.run, ["true"])).returncode == 0
        return pb.ScoreResponse(scored_count=count)

    async def GetCapabilities(self, request, context):
        return pb.GetCapabilitiesResponse(max_batch_size=7)

async def ask(address):
    caller = Caller(address)
    stub = RewardServiceStub(caller.channel)
    got = await caller.unary(stub.GetCapabilities, lambda left_s: pb.GetCapabilitiesRequest(), deadline_s=20)
    await caller.close()
    return got.max_batch_size

def ask_in_child(address):
    try:
        return asyncio.run(ask(address))
    except Exception as error:
        return f"{type(error).__name__}: {error}"

async def in_pool(context, address):
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(pool, ask_in_child, address) for _ in range(4)))

async def main():
    server = RpcServer.listen("127.0.0.1")
    add_RewardServiceServicer_to_server(Service(), server.server)
    await server.start()
    assert await ask(server.address) == 7
    for answer in await in_pool(multiprocessing.get_context("fork"), server.address):
        assert answer.startswith("StateError: process") and "process_context()" in answer, answer
    print("fork: refused at once")
    assert await in_pool(process_context(), server.address) == [7] * 4
    print("forkserver: answered")
    caller = Caller(server.address)
    stub = RewardServiceStub(caller.channel)
    got = await caller.unary(stub.Score, lambda left_s: pb.ScoreRequest(), deadline_s=60)
    print("subprocesses:", got.scored_count)
    assert await ask(server.address) == 7
    await caller.close()
    await server.stop(1)

if __name__ == "__main__":
    asyncio.run(main())
'''


def test_f2_pools_and_subprocesses_after_grpc_has_begun_all_finish(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["fork: refused at once", "forkserver: answered", "subprocesses: 200"]
