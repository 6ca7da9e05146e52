"""What the service boundary costs: the same trainer update called in its own process and through gRPC from another one.

    python benchmarks/service_boundary.py

One process holds the trainer core. It first makes the updates itself, then serves them to this process. Of each call
over gRPC both the caller's time and the core's own time inside it are taken, so the boundary's share (encoding, sending
over loopback, decoding, fencing) is the difference within single calls, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import multiprocessing.connection
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from measuring import DEFAULT_MODEL, make_batch, model_of, progress, trainer_options

DEADLINE_S = 3600.0


def make_work(args: argparse.Namespace, vocabulary: int) -> tuple[Any, Any]:
    """A batch with old log-probs, as the controller sends it, and how to walk over it."""
    import numpy as np

    from argosy.types.ragged import Ragged
    from argosy.types.records import LossConfig, UpdateConfig

    batch = make_batch([(args.prompt, [args.answer] * args.group)] * args.prompts, vocabulary)
    offsets = batch.ragged("response_ids").offsets
    constant = Ragged(np.full(int(offsets[-1]), -5.0, np.float32), offsets)
    for name in ("rollout_log_probs", "old_log_probs"):
        batch = batch.with_column(name, constant)
    return batch, UpdateConfig(LossConfig(), mini_batch_size=args.prompts * args.group)


def mutation(number: int, place: str) -> Any:
    """A call that was not made before."""
    from argosy.types.records import Mutation

    return Mutation("benchmark", 1, f"{place}-{number}", DEADLINE_S, None)


class TimedCore:
    """A trainer core whose updates are timed; everything else goes straight to it."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.seconds: list[float] = []

    async def update(self, batch: Any, config: Any, ctx: Any) -> Any:
        begun = time.perf_counter()
        result = await self._core.update(batch, config, ctx)
        self.seconds.append(time.perf_counter() - begun)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


def hold(args: argparse.Namespace, pipe: multiprocessing.connection.Connection) -> None:
    """The trainer's process."""

    async def run() -> None:
        import torch

        from argosy.modeling.memory import keep_freed_memory
        from argosy.rpc.gate import Gate
        from argosy.rpc.server import RpcServer
        from argosy.trainer.backends import make_backend
        from argosy.trainer.core import Trainer
        from argosy.trainer.service import add_to_server

        torch.set_num_threads(args.threads)
        keep_freed_memory()
        options = trainer_options(
            args.model, compute_dtype=args.dtype, max_tokens=args.micro_batch_tokens, threads=args.threads
        )
        core = TimedCore(Trainer(options, make_backend))
        batch, config = make_work(args, args.vocabulary)
        for number in range(args.repeats + 1):
            await core.update(batch, config, mutation(number, "inside"))
        direct = core.seconds[1:]
        core.seconds = []
        gate = Gate("trainer-0")
        server = RpcServer.listen("127.0.0.1", 0, gate=gate)
        await server.start()
        await server.serve(add_to_server(core, server.server, gate))
        pipe.send((server.address, direct))
        await asyncio.to_thread(pipe.recv)
        pipe.send(core.seconds)
        await server.stop(0)
        core.close()

    asyncio.run(run())


async def call(args: argparse.Namespace, address: str) -> tuple[list[float], float]:
    """Seconds of each update over gRPC, as the caller sees them, and of a call with nothing in it."""
    from argosy.rpc.clients.policy import PolicyClient

    client = PolicyClient(address)
    batch, config = make_work(args, args.vocabulary)
    found, empty = [], []
    for number in range(args.repeats + 1):
        begun = time.perf_counter()
        await client.update(batch, config, mutation(number, "outside"))
        found.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        await client.status()
        empty.append(time.perf_counter() - begun)
    await client.close()
    return found, median(empty)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="Hugging Face folder")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"], help="of compute")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8, help="answers per prompt")
    parser.add_argument("--prompt", type=int, default=48, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--micro-batch-tokens", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a tiny random model")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts, args.group, args.prompt, args.answer, args.repeats = 2, 2, 8, 8, 2
    return args


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Both ways; seconds and shares."""
    context = multiprocessing.get_context("spawn")  # gRPC must not be forked
    pipe, other = context.Pipe()
    process = context.Process(target=hold, args=(args, other))
    process.start()
    other.close()
    progress(f"{args.repeats + 1} updates in the trainer's process")
    address, direct = pipe.recv()
    progress(f"{args.repeats + 1} updates through gRPC")
    outside, empty = asyncio.run(call(args, address))
    pipe.send("done")
    inside = pipe.recv()
    process.join()
    costs = [(whole - part) for whole, part in zip(outside, inside, strict=True)][1:]
    return {
        "in_process_s": median(direct),
        "grpc_s": median(outside[1:]),
        "core_within_grpc_s": median(inside[1:]),
        "boundary_s": median(costs),
        "boundary_share": median(costs) / median(inside[1:]),
        "grpc_over_in_process": median(outside[1:]) / median(direct) - 1,
        "empty_call_s": empty,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = parse(argv)
    with tempfile.TemporaryDirectory(prefix="boundary-") as name:
        args.model = model_of(args, Path(name))
        args.vocabulary = json.loads((Path(args.model) / "config.json").read_text())["vocab_size"]
        found = measure(args)
    if args.json:
        print(json.dumps(found))
        return 0
    print(
        f"{args.prompts} prompts × {args.group} answers of {args.answer} tokens, {args.dtype}, {args.threads} threads, "
        f"median of {args.repeats} updates"
    )
    print(f"  in the trainer's process   {found['in_process_s']:8.3f} s")
    print(f"  through gRPC               {found['grpc_s']:8.3f} s   ({found['grpc_over_in_process']:+.2%})")
    print(
        f"  of which the boundary      {found['boundary_s']:8.4f} s   {found['boundary_share']:.2%} of the core's own "
        f"time; a call with nothing in it {found['empty_call_s'] * 1e3:.1f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
