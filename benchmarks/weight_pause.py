"""How long new weights keep samples waiting, beyond their transfer: the last phase of an update, in a real engine.

    python benchmarks/weight_pause.py                                              # the embedded engine
    .venvs/engines/bin/python benchmarks/weight_pause.py --engine vllm             # vLLM

SmolLM2-135M, 269 MB in bfloat16, with samples in flight. Bytes come into a staging area while samples go on; then
`finish_weight_update` swaps them in, which is what is measured: its whole time, and the longest time that any sample in
flight had no token around it, less the longest one without an update (the samples' cache is computed anew, too). Of
vLLM's swap the parts are told, and what samples are held for: while its workers make the new weights ready, they go on.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import numpy as np

from argosy.config import Config
from argosy.rollout.engines import load_engine
from argosy.rollout.engines.base import Engine
from argosy.rollout.engines.events import Event
from argosy.types.ids import SampleId
from argosy.types.records import GenerateRequest, SamplingParams, TokenRun
from argosy.weightsync import Snapshot, find_tied
from argosy.weightsync.tensors import ByteArray

PROMPT = tuple(range(100, 164))


class Watcher:
    """The longest time between two tokens of one sample."""

    def __init__(self) -> None:
        self._last: dict[SampleId, float] = {}
        self.longest_s = 0.0
        self._count = 0
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Event()

    def deliver(self, event: Event) -> None:
        """From any thread."""
        if isinstance(event, TokenRun):
            now = time.perf_counter()
            self.longest_s = max(self.longest_s, now - self._last.get(event.sample_id, now))
            self._last[event.sample_id] = now
            self._count += 1
            self._loop.call_soon_threadsafe(self._turn.set)

    async def until_more(self, count: int) -> None:
        """Wait for some tokens."""
        wanted = self._count + count
        while self._count < wanted:
            self._turn.clear()
            await self._turn.wait()


HELD = "pause (hold to resume)"


class Split:
    """Seconds of each call of some coroutine methods."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def watch(self, target: Any, names: Sequence[str]) -> None:
        """Time these methods of an object from now on."""
        for name in names:
            setattr(target, name, self._timed(name, getattr(target, name)))

    def watch_hold(self, engine: Any) -> None:
        """Time from when samples begin to be held to when they may go on."""
        began = 0.0
        hold, go_on = engine._hold, engine._go_on

        async def held() -> None:
            nonlocal began
            began = time.perf_counter()
            await hold()

        async def gone_on() -> None:
            await go_on()
            self.seconds.setdefault(HELD, []).append(time.perf_counter() - began)

        engine._hold, engine._go_on = held, gone_on

    def _timed(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return await call(*args, **options)
            finally:
                self.seconds.setdefault(name, []).append(time.perf_counter() - began)

        return timed


async def measure(engine: Engine, samples: int, repeat: int) -> dict[str, list[float]]:
    """Seconds of each swap, of the longest gaps beyond those of undisturbed sampling, and of a memcpy as large."""
    tensors = dict(await engine.held_state())
    watcher = Watcher()
    params = SamplingParams(max_tokens=900, ignore_eos=True, seed=1)
    requests = [GenerateRequest(SampleId(0, 0, k), PROMPT, params) for k in range(samples)]
    await engine.submit(requests, watcher.deliver, 1)
    swaps: list[float] = []
    gaps: list[float] = []
    copies: list[float] = []
    for step in range(1, repeat + 2):
        snapshot = await asyncio.to_thread(Snapshot.freeze, "benchmark", step, tensors, find_tied(tensors))
        sent = {name: one for name, one in snapshot.tensors().items() if name not in engine.facts.tied}
        await watcher.until_more(8 * samples)
        watcher.longest_s = 0.0
        await watcher.until_more(8 * samples)
        usual, watcher.longest_s = watcher.longest_s, 0.0
        began = time.perf_counter()
        await engine.swap_weights(sent, snapshot.manifest.version)
        took = time.perf_counter() - began
        await watcher.until_more(8 * samples)
        if step > 1:  # the first meets fresh memory
            copies.append(copy_seconds(snapshot.buffer.memory))
            swaps.append(took)
            gaps.append(max(0.0, watcher.longest_s - usual))
    await engine.abort(None)
    return {"swap (finish_weight_update)": swaps, "gap of samples in flight": gaps, "memcpy of as much": copies}


def copy_seconds(memory: ByteArray) -> float:
    """Of one thread's copy into memory that was touched before."""
    there = np.ones_like(memory)
    began = time.perf_counter()
    np.copyto(there, memory)
    return time.perf_counter() - began


def plain_text(ids: Sequence[int]) -> str:
    """Nobody reads it."""
    return ""


async def run(arguments: argparse.Namespace) -> None:
    """Start the engine, measure, print."""
    config = Config().with_values({
        "actor_rollout_ref.model.path": arguments.model,
        "actor_rollout_ref.rollout.name": arguments.engine,
        "actor_rollout_ref.rollout.max_model_len": 1024,
        "argosy.rollout.dtype": "bfloat16",
        "argosy.rollout.device": "auto",
        "argosy.rollout.threads": arguments.threads,
        "argosy.rollout.slot_count": arguments.samples,
    })  # fmt: skip
    engine = load_engine(arguments.engine)(config, plain_text, start_stale=False)
    await engine.start()
    split = Split()
    if arguments.engine == "vllm":
        inside = cast(Any, engine)
        split.watch(inside._weights, ["lay_out", "prepare", "drop", "put_in"])
        split.watch(inside, ["_hold", "_serve"])
        split.watch_hold(inside)
    try:
        found = await measure(engine, arguments.samples, arguments.repeat)
    finally:
        await engine.close()
    found |= {f"  of it {name}": seconds[-arguments.repeat :] for name, seconds in split.seconds.items()}
    for name, values in found.items():
        told = " ".join(f"{1000 * value:.0f}" for value in values)
        print(f"{arguments.engine}: {name}: best {1000 * min(values):.0f} ms of {told}", flush=True)


def main() -> None:
    """Parse the arguments, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="hf", choices=["hf", "vllm"])
    parser.add_argument("--model", default="models/smollm2-135m-instruct")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=4, help="in flight")
    parser.add_argument("--repeat", type=int, default=4)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
