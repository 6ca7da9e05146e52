"""Rollout servers as real processes, forked from one that has loaded torch already: a dozen in some seconds."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from argosy.rpc.clients.rollout import RolloutClient

PRELOADED = [
    "argosy.rollout.core",
    "argosy.rollout.service",
    "argosy.rollout.engines.hf.adapter",
    "argosy.rpc.server",
    # What loading a model imports by and by, seconds of it.
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.generation.utils",
    "torch._dynamo",
]


@dataclass
class Server:
    """A process, and a client of it."""

    name: str
    process: BaseProcess
    pipe: Connection
    client: RolloutClient

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid


async def start_servers(model: Path, names: list[str]) -> dict[str, Server]:
    """Start them side by side; they hold no weights yet."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    begun: dict[str, tuple[BaseProcess, Connection]] = {}
    for name in names:
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(str(model), name, there), daemon=True)
        process.start()
        there.close()
        begun[name] = process, here
    servers = {}
    for name, (started, pipe) in begun.items():
        address = await asyncio.to_thread(pipe.recv)
        servers[name] = Server(name, started, pipe, RolloutClient(address, member_id=name))
    return servers


async def stop_servers(servers: dict[str, Server]) -> None:
    """Also of dead and frozen ones."""
    for server in servers.values():
        server.process.kill()
        await server.client.close()
    for server in servers.values():
        await asyncio.to_thread(server.process.join, 20)
        server.pipe.close()


def serve(model: str, name: str, pipe: Connection) -> None:
    """In a process of its own, until it is killed or its parent has gone."""
    os.environ["OMP_NUM_THREADS"] = "1"

    async def run() -> None:
        from argosy.rollout.core import HfRollout, HfRolloutOptions
        from argosy.rollout.service import add_to_server
        from argosy.rpc.gate import Gate
        from argosy.rpc.server import RpcServer
        from argosy.text.tokenizer import load_tokenizer

        options = HfRolloutOptions(model, threads=1, slot_count=4, start_stale=True)
        core = HfRollout(options, load_tokenizer(model).decode)
        await core.start()
        server = RpcServer.listen("127.0.0.1", 0, gate=Gate(name))
        names = add_to_server(core, server.server, server.gate)
        await server.start()
        await server.serve(names)
        pipe.send(server.address)
        try:
            await asyncio.to_thread(pipe.recv)
        except EOFError:
            os._exit(0)

    asyncio.run(run())
