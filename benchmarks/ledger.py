"""What the ledger costs a step: all entries of 1,000 samples, one call for each sample where the stream makes one.

    python benchmarks/ledger.py                       # 1,000 samples a step, 30 steps
    python benchmarks/ledger.py --step-seconds 4.0    # beside a step of your own

A thread writes SQLite and the segment; what counts here is everything, one after the other, the segment's fsync and
the last rows of the live table included, and then what of it the event loop itself has to do. It is put beside a real
step of *fewer* samples: by default that of benchmarks/grpo_vs_trl.py, where 64 samples of SmolLM2-135M take 16.7 s
(docs/benchmarks.md).
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from argosy.controller.ledger import Ledger
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import Completion, FinishReason, Scored, ScoreResult, VersionRun

GROUP = 8
STEP_SECONDS = 16.7


async def run(samples: int, steps: int, folder: Path) -> tuple[list[float], list[float]]:
    """Seconds of each step until all of it is on disk, and of the event loop in it."""
    ledger, seconds, on_loop = Ledger(folder, term=1), [], []
    groups = samples // GROUP
    for step in range(1, steps + 1):
        version = PolicyVersion("l0", step - 1, "ab" * 32)
        spent, step_began = 0.0, time.perf_counter()
        for position in range((step - 1) * groups, step * groups):
            ids = [SampleId(0, position, k) for k in range(GROUP)]
            answers = [Completion(i, (1,), (0.0,), (VersionRun(version, 1),), FinishReason.STOP) for i in ids]
            results = [ScoreResult(i, Scored(0.5)) for i in ids]
            began = time.perf_counter()
            ledger.drawn([(one, position) for one in ids])
            for one in ids:
                ledger.dispatched([one], f"rollout-{position % 8}")
            ledger.completed(answers)
            ledger.scored(results)
            ledger.trained(ids, step)
            spent += time.perf_counter() - began
            await asyncio.sleep(0)
        began = time.perf_counter()
        commit = ledger.begin_commit(step)
        on_loop.append(spent + time.perf_counter() - began)
        await commit
        seconds.append(time.perf_counter() - step_began)
    ledger.close()
    return seconds, on_loop


def main() -> None:
    """Print milliseconds a step, the event loop's part, their share of a real one, and what a sample takes on disk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000, help="samples a step (default 1000)")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--step-seconds", type=float, default=STEP_SECONDS, help="a real step to put it beside")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds, on_loop = asyncio.run(run(args.samples, args.steps, Path(folder)))
        size = sum(path.stat().st_size for path in Path(folder).glob("step_*.jsonl.gz"))
    ordered = sorted(seconds)
    median, worst = ordered[len(ordered) // 2], ordered[-1]
    print(f"{args.samples} samples a step, {args.steps} steps")
    print(f"ledger          {1000 * median:8.1f} ms a step (median), {1000 * worst:.1f} ms at most")
    print(f"event loop      {1000 * sorted(on_loop)[len(on_loop) // 2]:8.1f} ms of these (median)")
    print(f"a real step     {1000 * args.step_seconds:8.1f} ms")
    print(
        f"share           {100 * median / args.step_seconds:8.3f} % (at most {100 * worst / args.step_seconds:.3f} %)"
    )
    print(f"on disk         {size / args.samples / args.steps:8.1f} bytes a sample")


if __name__ == "__main__":
    main()
