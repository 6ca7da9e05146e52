"""How fast weights travel by each transport, beside memcpy and raw gloo in the same run.

    python benchmarks/weightsync.py                                   # 270 MB and 1 GB, 1 to 4 receivers
    python benchmarks/weightsync.py --size-mb 270 --receivers 1 2     # less

Sender and receivers are processes of their own, as in a fleet, with their services' threads; all receivers of a row
receive at the same time. A time is of the slowest receiver, from the offer to the last checksum of the manifest.

"first" is a run's first sync: memory that was never touched, nothing mapped, no process of the collective started yet.
"later" is any other one, into memory that is kept: the best of --repeat. memcpy is each receiver copying as many bytes
by itself at the same time, in one thread; raw gloo a bare loop of broadcasts over one group for each pair, unchecked;
checksums each receiver checking as many bytes that lie there already: what a collective adds to raw gloo's work. On
cores which raw gloo keeps busy it can't be faster than both one after the other: that bound is printed.
All of a row are measured in turn, round after round, since what the host leaves to a machine changes by the minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import distributed

from argosy.rpc import weights_service
from argosy.rpc.clients.weights import GrpcWeightSource
from argosy.rpc.server import RpcServer
from argosy.types.records import Mutation
from argosy.weightsync import Snapshot, Staging
from argosy.weightsync.collective.groups import buckets, join_store, make_group, serve_store
from argosy.weightsync.copying import checksums
from argosy.weightsync.transfers import Transfers
from argosy.weightsync.transports import SendOptions, load_transport, release

HIDDEN = 576
"""Of SmolLM2-135M: most tensors are [576, 576] or [1536, 576]."""
DEADLINE_S = 600.0
BUCKET = 64 << 20
TRANSPORTS = ("shared_memory", "collective", "stream", "disk")
ALONE = ("memcpy", "checksums")
"""What receivers do without the sender."""
BESIDE = {"shared_memory": "memcpy", "collective": "raw gloo", "stream": "memcpy", "disk": "memcpy"}
"""What a transport is held against."""


def random_state(size_mb: float) -> dict[str, torch.Tensor]:
    """bfloat16 tensors of the shapes of a small Llama, about `size_mb` MB (10⁶ bytes) in all."""
    generator = torch.Generator().manual_seed(0)
    state: dict[str, torch.Tensor] = {}
    left = size_mb * 1e6
    while left > 0:
        rows = int(min(1536 if len(state) % 3 else 576, max(1, left // (2 * HIDDEN))))
        state[f"layers.{len(state)}.weight"] = torch.randn(rows, HIDDEN, generator=generator).to(torch.bfloat16)
        left -= 2 * rows * HIDDEN
    return state


def serve(size_mb: float, folder: str, backend: str, pipe: Connection) -> None:
    """The sender's process; with NCCL it has the first GPU."""
    if backend == "nccl":
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"

    async def run() -> None:
        torch.set_num_threads(1)
        snapshot = Snapshot.freeze("benchmark", 0, random_state(size_mb))
        server = RpcServer.listen("127.0.0.1")
        names = weights_service.add_to_server(snapshot, server.server, server.gate)
        await server.start()
        await server.serve(names)
        transfers = Transfers(SendOptions(bucket_bytes=BUCKET, backend=backend, folder=folder))
        pipe.send((server.address, snapshot.manifest, freeze_seconds(snapshot)))
        while (command := await asyncio.to_thread(pipe.recv)) is not None:
            name, count, number = command
            ctx = Mutation("benchmark", 1, str(number), DEADLINE_S)
            if name == "forget":
                await asyncio.to_thread(release)
            elif name == "raw gloo":
                store = serve_store("127.0.0.1", DEADLINE_S)
                pipe.send(store.port)
                await asyncio.to_thread(raw_send, store, count, snapshot.buffer.memory)
            else:
                pipe.send(await transfers.open(snapshot, name, f"sync-{number}", count, ctx))
                await asyncio.to_thread(pipe.recv)
                await transfers.close(f"sync-{number}", ctx)
            pipe.send("done")
        await transfers.close_all()
        await server.stop(0)

    _run(run())


def freeze_seconds(snapshot: Snapshot) -> float:
    """Of a freeze into kept memory, with the comparison that counts changed weights."""
    spare = Snapshot.freeze("benchmark", 1, snapshot.tensors())
    begun = time.perf_counter()
    Snapshot.freeze("benchmark", 2, snapshot.tensors(), reuse=spare)
    return time.perf_counter() - begun


def raw_send(store: Any, count: int, memory: np.ndarray[Any, Any]) -> None:
    """Rank 0 of a pair with each receiver, side by side."""
    threads = [threading.Thread(target=raw_move, args=(store, index, 0, memory)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def raw_move(store: Any, index: int, rank: int, memory: np.ndarray[Any, Any]) -> float:
    """Broadcast bucket after bucket; seconds, without joining."""
    group = make_group("gloo", store, f"raw-{index}", rank, 2, "127.0.0.1", DEADLINE_S)
    tensor = torch.from_numpy(memory)
    group.barrier().wait(timedelta(seconds=DEADLINE_S))
    begun = time.perf_counter()
    for start, stop in buckets(len(memory), BUCKET):
        group.broadcast([tensor[start:stop]], distributed.BroadcastOptions()).wait(timedelta(seconds=DEADLINE_S))
    seconds = time.perf_counter() - begun
    group.barrier().wait(timedelta(seconds=DEADLINE_S))
    return seconds


def take(address: str, index: int, backend: str, pipe: Connection) -> None:
    """A receiver's process; with NCCL it has a GPU of its own."""
    if backend == "nccl":
        os.environ["CUDA_VISIBLE_DEVICES"] = str(index + 1)

    async def run() -> None:
        torch.set_num_threads(1)
        source = GrpcWeightSource(address)
        manifest = await source.get_manifest()
        staging = Staging(manifest)
        plain = np.zeros(staging.buffer.memory.size, np.uint8), np.ones(staging.buffer.memory.size, np.uint8)
        places = staging.buffer.places()
        pipe.send("ready")
        while (command := await asyncio.to_thread(pipe.recv)) is not None:
            begun = time.perf_counter()
            if command == "memcpy":
                np.copyto(*plain)
            elif command == "checksums":
                checksums(plain[0], places, threads=1)
            elif command == "forget":
                staging = Staging(manifest)
                await asyncio.to_thread(release)
            elif isinstance(command, int):
                store = join_store(f"127.0.0.1:{command}", DEADLINE_S)
                pipe.send(await asyncio.to_thread(raw_move, store, index, 1, plain[0]))
                continue
            else:
                staging = Staging(manifest, reuse=staging)
                await load_transport(command.transport).receive(command, source, manifest, staging, DEADLINE_S)
                staging.finish()
            pipe.send(time.perf_counter() - begun)
        await source.close()

    _run(run())


class Fleet:
    """A sender and receivers of one size."""

    def __init__(self, sender: Connection, receivers: Sequence[Connection]) -> None:
        self._sender = sender
        self._receivers = receivers
        self._number = 0

    def time(self, names: Sequence[str], count: int, repeat: int) -> dict[str, tuple[float, float]]:
        """Seconds of the slowest of `count` receivers at the same time by each way: (the first, the best later one)."""
        first: dict[str, float] = {}
        for name in names:
            if name in TRANSPORTS:
                self._once("forget", count)
            first[name] = self._once(name, count)
        for name in names:
            self._once(name, count)  # each meets the memory that the last "forget" has left untouched
        later = [{name: self._once(name, count) for name in names} for _ in range(repeat)]
        return {name: (first[name], min(times[name] for times in later)) for name in names}

    def _once(self, name: str, count: int) -> float:
        receivers = self._receivers[:count]
        self._number += 1
        commands: list[Any] = [name] * count
        if name not in ALONE:
            self._sender.send((name, count, self._number))
            answer = self._sender.recv() if name != "forget" else name
            commands = list(answer) if name in TRANSPORTS else [answer] * count
        for receiver, command in zip(receivers, commands, strict=True):
            receiver.send(command)
        slowest = max(receiver.recv() for receiver in receivers)
        if name in TRANSPORTS:
            self._sender.send("close")
        if name not in ALONE:
            self._sender.recv()
        return float(slowest)


@contextmanager
def fleet(size_mb: float, count: int, backend: str) -> Iterator[tuple[Fleet, float, float]]:
    """(the fleet, bytes in GB, seconds of a freeze)."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        sender, there = context.Pipe()
        processes = [context.Process(target=serve, args=(size_mb, folder, backend, there))]
        processes[0].start()
        address, manifest, freeze_s = sender.recv()
        receivers = []
        for index in range(count):
            here, there = context.Pipe()
            processes.append(context.Process(target=take, args=(address, index, backend, there)))
            processes[-1].start()
            here.recv()
            receivers.append(here)
        yield Fleet(sender, receivers), sum(spec.size_bytes for spec in manifest.tensors) / 1e9, freeze_s
        for pipe in (sender, *receivers):
            pipe.send(None)
        for process in processes:
            process.join(20)
            process.kill()


def measure(
    size_mb: float, counts: Sequence[int], repeat: int, names: Sequence[str], backend: str = "gloo"
) -> list[dict[str, Any]]:
    """The rows of one size, printed as they come."""
    rows: list[dict[str, Any]] = []
    with fleet(size_mb, max(counts), backend) as (made, size_gb, freeze_s):
        print(f"{size_gb * 1000:.0f} MB; freeze (copy, compare, checksums) {size_gb / freeze_s:.2f} GB/s", flush=True)
        for count in counts:
            times = made.time((*ALONE, "raw gloo", *names), count, repeat)
            for name, (first, later) in times.items():
                row = {"mb": size_mb, "receivers": count, "transport": name, "gb_per_s": size_gb / later}
                row["first_s"] = first
                beside = BESIDE.get(name)
                if beside:
                    row |= {"ratio": times[beside][1] / later, "of": beside}
                rows.append(row)
                ratio = f"  {row['ratio']:5.2f} × {beside}" if beside else ""
                told = f"{later:7.3f} s  {row['gb_per_s']:6.2f} GB/s each{ratio}"
                print(f"  {count} × {name:14} first {first:7.3f} s; later {told}", flush=True)
            if "collective" in names:
                gloo, checking = times["raw gloo"][1], times["checksums"][1]
                print(f"  {count} × raw gloo and then checksums would be {gloo / (gloo + checking):5.2f} × raw gloo")
    return rows


def _run(work: Coroutine[Any, Any, None]) -> None:
    """On uvloop where there is one, as the services run."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        asyncio.run(work)
        return
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work)


def main() -> None:
    """Parse the arguments, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=float, nargs="+", default=[270.0, 1000.0], help="sizes to measure")
    parser.add_argument("--receivers", type=int, nargs="+", default=[1, 2, 3, 4], help="how many at a time")
    parser.add_argument("--transports", nargs="+", default=list(TRANSPORTS), choices=TRANSPORTS)
    parser.add_argument("--repeat", type=int, default=5, help="later syncs; the best counts")
    parser.add_argument("--json", action="store_true", help="as the last line, print all rows as one JSON array")
    arguments = parser.parse_args()
    rows = []
    for size_mb in arguments.size_mb:
        rows += measure(size_mb, arguments.receivers, arguments.repeat, arguments.transports)
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
