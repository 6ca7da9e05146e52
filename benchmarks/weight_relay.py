"""How long a weight sync takes, and what the trainer sends in it, against the number of rollout servers.

    python benchmarks/weight_relay.py                                 # 1 … 16 servers, simulated to 1024
    python benchmarks/weight_relay.py --servers 1 4 --mb-per-s 25     # less

Servers are processes with the embedded engine and a small random model; the controller's own sync (`publish_and_sync`)
brings weights to them by stream, with and without servers that pass them on (`argosy.weight_sync.fan_out`). All share
one machine, so that its cores would be the limit, which no fleet has: trainer and servers therefore send no faster than
--mb-per-s each, all their streams together, as with a network card of that speed each. A time is from publishing to
the last server that serves the version, the best of --repeat after one that isn't counted.

Beyond that, the schedule of the real sync (`argosy.controller.stages.sources`) is played in simulated time: a transfer
takes its bytes at the sender's speed, shared by what it sends at that time, and as much on top as was measured with one
server. What that leaves out is what a controller with so many servers costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import selectors
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from argosy.types.ids import PolicyVersion
from argosy.types.records import WeightChunk, WeightsManifest

FAN_OUTS = (0, 2)
"""Without and with passing on."""
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
Result = TypeVar("Result")


class Card:
    """A network card: bytes go out one after another, at so many a second. Counts them."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.byte_count = 0
        self._free_at = 0.0

    async def send(self, count: int) -> None:
        """Return when they are out."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(now, self._free_at) + count / self.bytes_per_s
        self.byte_count += count
        await asyncio.sleep(self._free_at - now)


class Slowed:
    """A WeightSource behind a card."""

    def __init__(self, source: Any, card: Card) -> None:
        self._source = source
        self._card = card

    @property
    def address(self) -> str:
        return ""

    async def get_manifest(self) -> WeightsManifest:
        return await self._source.get_manifest()  # type: ignore[no-any-return]

    async def manifest_of(self, version: PolicyVersion) -> WeightsManifest:
        if hasattr(self._source, "manifest_of"):
            return await self._source.manifest_of(version)  # type: ignore[no-any-return]
        return await self.get_manifest()

    async def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        async for chunk in self._source.stream_weights(version, names, base=base):
            await self._card.send(len(chunk.data))
            yield chunk


def serve(model: str, bytes_per_s: float, pipe: Connection) -> None:
    """A rollout server's process, until the pipe closes."""
    os.environ["OMP_NUM_THREADS"] = "1"

    async def run() -> None:
        from argosy.rollout.core import HfRollout, HfRolloutOptions
        from argosy.rollout.service import add_to_server
        from argosy.rpc.server import RpcServer

        options = HfRolloutOptions(model, threads=1, slot_count=4, start_stale=True)
        core: Any = HfRollout(options, lambda ids: "")
        await core.start()
        source = Slowed(core.weight_source(), Card(bytes_per_s))
        core.weight_source = lambda: source
        server = RpcServer.listen("127.0.0.1")
        names = add_to_server(core, server.server, server.gate)
        await server.start()
        await server.serve(names)
        pipe.send(server.address)
        try:
            await asyncio.to_thread(pipe.recv)
        except EOFError:
            os._exit(0)

    asyncio.run(run())


@dataclass
class Fleet:
    """Servers, a trainer, and the controller's side of both."""

    rollouts: dict[str, Any]
    policy: Any
    card: Card
    folder: Path
    number: int = 0

    async def sync(self, count: int, fan_out: int) -> tuple[float, float, float]:
        """(seconds, MB that the trainer sent, MB of the weights) of one sync of the first `count` servers."""
        from argosy.config import Config
        from argosy.controller.context import RunContext, Services
        from argosy.controller.ledger import Ledger
        from argosy.controller.stages.rollout import RolloutStage
        from argosy.controller.stages.sync import publish_and_sync
        from argosy.membership.memory import MemoryMembership

        self.number += 1
        keys = {"argosy.weight_sync.transport": "stream", "argosy.weight_sync.fan_out": fan_out}
        rollouts = dict(list(self.rollouts.items())[:count])
        services = Services(rollouts, None, self.policy, None)  # type: ignore[arg-type]
        ledger = Ledger(self.folder / f"ledger-{self.number}", 1)
        lineage = f"l{self.number}"
        ctx = RunContext(Config().with_values(keys), "run", 1, services, ledger, MemoryMembership(), lineage)
        before, begun = self.card.byte_count, time.perf_counter()
        await publish_and_sync(ctx, RolloutStage(ctx), 0)
        seconds = time.perf_counter() - begun
        ledger.close()
        assert not ctx.counters, f"a sync in which something failed: {ctx.counters}"
        return seconds, (self.card.byte_count - before) / 1e6, ctx.measured["sync/manifest_mb"]


@asynccontextmanager
async def open_fleet(count: int, bytes_per_s: float) -> AsyncIterator[Fleet]:
    """Start it, and end it."""
    from argosy.modeling.loading import ModelSource
    from argosy.modeling.tiny import save_tiny_model
    from argosy.rpc.clients.policy import PolicyClient
    from argosy.rpc.clients.rollout import RolloutClient
    from argosy.rpc.server import RpcServer
    from argosy.trainer.backends import make_backend
    from argosy.trainer.core import Trainer
    from argosy.trainer.options import TrainerOptions
    from argosy.trainer.service import add_to_server

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = save_tiny_model(folder / "model", hidden_size=256, layer_count=3)
        pipes = []
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(str(model), bytes_per_s, there), daemon=True)
            process.start()
            there.close()
            stack.callback(process.join, 20)
            stack.callback(process.kill)
            pipes.append(here)
        rollouts = {}
        for number, pipe in enumerate(pipes):
            client = RolloutClient(await asyncio.to_thread(pipe.recv))
            stack.push_async_callback(client.close)
            rollouts[f"rollout-{number:04}"] = client
        trainer: Any = Trainer(TrainerOptions(ModelSource(str(model), device="cpu"), threads=1), make_backend)
        stack.callback(trainer.close)
        card = Card(bytes_per_s)
        source = Slowed(trainer.weight_source(), card)
        trainer.weight_source = lambda: source
        server = RpcServer.listen("127.0.0.1")
        names = add_to_server(trainer, server.server, server.gate)
        await server.start()
        await server.serve(names)
        stack.push_async_callback(server.stop, 0)
        policy = PolicyClient(server.address)
        stack.push_async_callback(policy.close)
        yield Fleet(rollouts, policy, card, folder)


async def measure(counts: Sequence[int], bytes_per_s: float, repeat: int) -> list[dict[str, Any]]:
    """The measured rows, printed as they come."""
    rows = []
    async with open_fleet(max(counts), bytes_per_s) as fleet:
        for count in counts:
            found = []
            for fan_out in FAN_OUTS:
                await fleet.sync(count, fan_out)
                found.append(min([await fleet.sync(count, fan_out) for _ in range(repeat)]))
            rows.append(row_of(count, found, "measured") | {"weights_mb": found[0][2]})
    return rows


def row_of(count: int, found: Sequence[tuple[float, ...]], how: str) -> dict[str, Any]:
    """One line of the table, printed; `found` has (seconds, MB that the trainer sent, …) of each fan-out."""
    (direct_s, direct_mb, *_), (relay_s, relay_mb, *_) = found
    print(f"| {count} | {direct_s:.2f} | {direct_mb:.0f} | {relay_s:.2f} | {relay_mb:.0f} | {how} |", flush=True)
    row = {"servers": count, "how": how, "direct_s": direct_s, "direct_mb": direct_mb}
    return row | {"relay_s": relay_s, "relay_mb": relay_mb}


class _Jumps(selectors.DefaultSelector):
    """Waits for nothing: the time is then as if it had."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now_s += timeout or 0.0
        return super().select(0)


def in_simulated_time(work: Coroutine[Any, Any, Result]) -> Result:
    """Run what only sleeps, at once; its loop's clock begins at 0."""
    selector = _Jumps()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now_s  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


async def simulate(count: int, fan_out: int, size: float, bytes_per_s: float, overhead_s: float) -> tuple[float, float]:
    """(seconds, MB that the trainer sent) of a sync of `count` servers."""
    from argosy.controller.stages.sources import TRAINER, Holder, Sources

    trainer = Card(bytes_per_s)
    patience_s = float("inf")  # nobody is frozen
    sources = Sources(None, fan_out or None, patience_s)  # type: ignore[arg-type]
    pieces = 32  # of a transfer: those who take from the trainer at the same time take turns

    async def one(name: str) -> None:
        async with sources.lent() as holder:
            card = trainer if holder.member == TRAINER else Card(bytes_per_s)
            for _ in range(pieces):
                await card.send(int(size / pieces))
            await asyncio.sleep(overhead_s)
        sources.add(Holder(name, None, holder.hops + 1))  # type: ignore[arg-type]

    await asyncio.gather(*(one(f"{number:04}") for number in range(count)))
    return asyncio.get_running_loop().time(), trainer.byte_count / 1e6


def powers(above: int, most: int) -> Iterator[int]:
    """Doubled from `above`, up to `most`."""
    while (above := 2 * above) <= most:
        yield above


def main() -> None:
    """Parse the arguments, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="real ones; begin with 1")
    parser.add_argument("--simulated", type=int, default=1024, help="most servers in simulated time")
    parser.add_argument("--mb-per-s", type=float, default=50.0, help="that each sends, in all its streams")
    parser.add_argument("--repeat", type=int, default=3, help="tries; the best counts")
    parser.add_argument("--quick", action="store_true", help="1 and 3 servers, once")
    parser.add_argument("--json", action="store_true", help="the rows as JSON, in a last line")
    asked = parser.parse_args()
    if asked.quick:
        asked.servers, asked.simulated, asked.repeat = [1, 3], 64, 1
    speed = 1e6 * asked.mb_per_s
    print("| servers | direct, s | trainer sent, MB | passed on, s | trainer sent, MB | |\n|---|---|---|---|---|---|")
    rows = asyncio.run(measure(asked.servers, speed, asked.repeat))
    size_mb = rows[0]["weights_mb"]
    overhead_s = max(0.0, rows[0]["direct_s"] - size_mb / asked.mb_per_s)
    for count in [*asked.servers, *powers(max(asked.servers), asked.simulated)]:
        found = [in_simulated_time(simulate(count, out, 1e6 * size_mb, speed, overhead_s)) for out in FAN_OUTS]
        rows.append(row_of(count, found, "simulated"))
    print(f"\n{size_mb:.1f} MB of weights, {asked.mb_per_s:g} MB/s a sender, {overhead_s:.3f} s beyond the sending")
    if asked.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
