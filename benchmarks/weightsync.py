"""How fast weights travel: the stream transport over loopback gRPC, in one process, and a plain copy for comparison.

    python benchmarks/weightsync.py                 # tiny (0.5 MB) and 270 MB of random weights
    python benchmarks/weightsync.py --size-mb 1000 --repeat 5

The sender is a process of its own, as in a fleet. Times are of `receive` + `finish` into reused memory, the best of
`--repeat`; the manifest's checksums are checked on every byte.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import multiprocessing.connection
import time

import numpy as np
import torch

from argosy.roles.weights import WeightSource
from argosy.rpc import weights_service
from argosy.rpc.clients.weights import GrpcWeightSource
from argosy.rpc.server import RpcServer
from argosy.weightsync import Snapshot, Staging
from argosy.weightsync.transports.stream import pull as receive

HIDDEN = 576
"""Of SmolLM2-135M: most tensors are [576, 576] or [1536, 576]."""


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


def serve(size_mb: float, pipe: multiprocessing.connection.Connection) -> None:
    """The sender's process."""

    async def run() -> None:
        snapshot = Snapshot.freeze("benchmark", 0, random_state(size_mb))
        server = RpcServer.listen("127.0.0.1")
        names = weights_service.add_to_server(snapshot, server.server, server.gate)
        await server.start()
        await server.serve(names)
        spare = Snapshot.freeze("benchmark", 1, snapshot.tensors())
        begun = time.perf_counter()
        Snapshot.freeze("benchmark", 2, snapshot.tensors(), reuse=spare)
        pipe.send((server.address, time.perf_counter() - begun))
        await asyncio.to_thread(pipe.recv)
        await server.stop(0)

    _run(run())


async def timed(source: WeightSource, repeat: int) -> tuple[float, Staging]:
    """Best seconds of a whole receive into reused memory."""
    manifest = await source.get_manifest()
    staging, best = Staging(manifest), float("inf")
    for number in range(repeat + 1):
        staging = Staging(manifest, reuse=staging)
        begun = time.perf_counter()
        await receive(source, manifest, staging, 600)
        staging.finish()
        if number:  # the first one met fresh memory
            best = min(best, time.perf_counter() - begun)
    return best, staging


async def measure(size_mb: float, repeat: int) -> None:
    """One row of the table."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(size_mb, there), daemon=True)
    process.start()
    address, freeze_s = await asyncio.to_thread(here.recv)
    source = GrpcWeightSource(address)
    grpc_s, staging = await timed(source, repeat)
    await source.close()
    here.send(None)
    local_s, _ = await timed(Snapshot.of_staging(staging), repeat)
    size = staging.size_bytes
    left, right = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    copy_s = float("inf")
    for _ in range(repeat):
        begun = time.perf_counter()
        np.copyto(right, left)
        copy_s = min(copy_s, time.perf_counter() - begun)
    print(f"{size / 1e6:8.1f} MB, {len(staging.manifest.tensors)} tensors")
    for name, seconds in (
        ("memcpy", copy_s),
        ("freeze", freeze_s),
        ("in process", local_s),
        ("gRPC loopback", grpc_s),
    ):
        print(f"  {name:14} {seconds:8.4f} s {size / 1e6 / seconds:9.0f} MB/s {copy_s / seconds:6.2f} × memcpy")
    await asyncio.to_thread(process.join, 10)


def _run(work: object) -> None:
    """On uvloop where there is one, as the services run."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        asyncio.run(work)  # type: ignore[arg-type]
        return
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work)  # type: ignore[arg-type]


def main() -> None:
    """Parse the arguments, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=float, action="append", help="sizes to measure; default 0.5 and 270")
    parser.add_argument("--repeat", type=int, default=3, help="tries; the best counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for size_mb in arguments.size_mb or [0.5, 270.0]:
        _run(measure(size_mb, arguments.repeat))


if __name__ == "__main__":
    main()
