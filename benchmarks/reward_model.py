"""Samples a second of a scoring model that is asked for one sample a call, as a controller asks whose answers come one
by one: passes that concurrent calls share, against a pass for each call.

    python benchmarks/reward_model.py [--callers 32] [--samples 384]

A random Llama of the shape given. Both in this process, in turns; the best of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import torch

from argosy.modeling.compute_thread import ComputeThread
from argosy.modeling.loading import ModelSource
from argosy.reward.models.batching import BatchLimits
from argosy.reward.models.network import ScoringNetwork, load_network
from argosy.reward.models.sharing import SharedPasses

LIMITS = BatchLimits()
Score = Callable[[list[int]], Awaitable[object]]


def make_network(folder: str, hidden: int, layers: int) -> ScoringNetwork:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    config: Any = LlamaConfig(
        vocab_size=4096, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 32, num_key_value_heads=hidden // 32, num_labels=1, pad_token_id=0,
    )  # fmt: skip
    LlamaForSequenceClassification(config).save_pretrained(folder)
    return load_network(ModelSource(folder, "float32", "cpu"))


async def samples_per_s(score: Score, sequences: list[list[int]], callers: int) -> float:
    waiting = list(sequences)

    async def caller() -> None:
        while waiting:
            await score(waiting.pop())

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return len(sequences) / (time.perf_counter() - start)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--samples", type=int, default=384)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--shortest", type=int, default=20)
    parser.add_argument("--longest", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.manual_seed(0)
    numbers = np.random.default_rng(0)
    lengths = numbers.integers(given.shortest, given.longest + 1, given.samples)
    sequences = [numbers.integers(1, 4096, length).tolist() for length in lengths]
    with tempfile.TemporaryDirectory() as folder:
        network = make_network(folder, given.hidden, given.layers)
    thread = ComputeThread("alone", max_pending=given.callers)
    passes = SharedPasses(network, LIMITS, max_calls=given.callers)

    async def alone(ids: list[int]) -> object:
        return await thread.run(lambda: network.values([ids], LIMITS))

    async def shared(ids: list[int]) -> object:
        return await passes.values([ids], end=time.monotonic() + 600)

    best = {"alone": 0.0, "shared": 0.0}
    for _ in range(given.rounds):
        for name, score in (("alone", alone), ("shared", shared)):
            best[name] = max(best[name], await samples_per_s(score, sequences, given.callers))
    single = {
        name: await samples_per_s(score, sequences[:64], 1) for name, score in (("alone", alone), ("shared", shared))
    }
    passes.close()
    thread.close()
    print(f"{given.callers} callers: a pass for each call {best['alone']:.1f} samples/s, shared passes "
          f"{best['shared']:.1f} ({best['shared'] / best['alone']:.2f} ×)")  # fmt: skip
    print(f"one caller:  {single['alone']:.1f} and {single['shared']:.1f} ({single['shared'] / single['alone']:.2f} ×)")


if __name__ == "__main__":
    asyncio.run(main())
