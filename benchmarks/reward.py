"""Samples a second of the built-in verifiers: called directly, and through worker processes as the service does.

    python benchmarks/reward.py [--samples 4000] [--workers 2]

MATH answers differ from sample to sample, so that no cache of parsed formulas helps. "Warm" means after the first
sample, whose import of math-verify is timed apart.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable

from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.pool import PoolOptions
from argosy.reward.verifiers import find_verifier
from argosy.types.ids import SampleId
from argosy.types.records import ScoreRequest, ScoreResult

THOUGHT = "First we add what is given, then we look at what is left over, and simplify. " * 12


def gsm8k(k: int) -> ScoreRequest:
    return ScoreRequest(SampleId(0, k, 0), "openai/gsm8k", "", f"{THOUGHT}\n#### {k:,}", str(k))


def math_numbers(k: int) -> ScoreRequest:
    return ScoreRequest(SampleId(0, k, 0), "lighteval/MATH", "", rf"{THOUGHT}\boxed{{\frac{{{k}}}{{7}}}}", f"{k}/7")


def math_formulas(k: int) -> ScoreRequest:
    answer, gold = rf"{k}x + \sqrt{{{4 * k}}}", rf"2\sqrt{{{k}}} + {k}x"
    return ScoreRequest(SampleId(0, k, 0), "lighteval/MATH", "", rf"{THOUGHT}\boxed{{{answer}}}", gold)


def direct_rate(items: list[ScoreRequest]) -> float:
    """Samples a second in this process, one after the other."""
    started = time.perf_counter()
    for item in items:
        verifier = find_verifier(item.data_source)
        assert verifier is not None
        verifier.verify(item.response_text, item.ground_truth, item.extra_info)
    return len(items) / (time.perf_counter() - started)


def pool_rate(scorers: RewardScorers, items: list[ScoreRequest]) -> float:
    """Samples a second through the worker processes."""

    async def run() -> list[ScoreResult]:
        return await scorers.score(items, deadline_s=600)

    started = time.perf_counter()
    asyncio.run(run())
    return len(items) / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    started = time.perf_counter()
    scorers = RewardScorers(RewardOptions(PoolOptions(worker_count=arguments.workers)))
    print(f"{arguments.workers} workers ready in {time.perf_counter() - started:.2f} s")
    kinds: dict[str, tuple[Callable[[int], ScoreRequest], int]] = {
        "gsm8k": (gsm8k, arguments.samples),
        "MATH, numbers": (math_numbers, arguments.samples),
        "MATH, formulas": (math_formulas, max(100, arguments.samples // 20)),
    }
    try:
        print(f"{'':16}{'direct/s':>10}{'pool/s':>10}{'pool ÷ direct':>16}")
        for name, (make, count) in kinds.items():
            pool_rate(scorers, [make(k) for k in range(1_000_001, 1_000_001 + 4 * arguments.workers)])
            direct_rate([make(1_000_000)])
            items = [make(k) for k in range(1, count + 1)]
            direct, pooled = direct_rate(items), pool_rate(scorers, items)
            print(f"{name:16}{direct:10.0f}{pooled:10.0f}{pooled / direct:16.2f}")
    finally:
        scorers.shutdown()


if __name__ == "__main__":
    main()
