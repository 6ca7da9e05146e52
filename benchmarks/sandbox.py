"""Runs a second of a trivial program: in the sandbox, through the reward service's workers, and by plain subprocess.

    python benchmarks/sandbox.py [--seconds 5] [--workers 2]

"sandbox" is a sample with one hidden test, from the response's text to the verdict. "calls" is a sample with ten
call-based tests, which share a process. "subprocess" is `subprocess.run([python, file])` with pipes and a timeout in as
many threads: no isolation, no limits. Rounds alternate, so that both sides see the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.pool import PoolOptions
from argosy.types.ids import SampleId
from argosy.types.records import Scored, ScoreRequest

CODE = "a, b = map(int, input().split())\nprint(a + b)\n"
FUNCTION = "def add(a, b):\n    return a + b\n"
BATCH = 32
ROUNDS = 3


def program(k: int) -> ScoreRequest:
    tests = {"inputs": [f"{k} 1\n"], "outputs": [str(k + 1)]}
    return ScoreRequest(SampleId(0, 0, k), "apps", "", f"```python\n{CODE}```", tests, {})


def calls(k: int) -> ScoreRequest:
    tests = {"fn_name": "add", "inputs": [[k, n] for n in range(10)], "outputs": [k + n for n in range(10)]}
    return ScoreRequest(SampleId(0, 0, k), "apps", "", f"```python\n{FUNCTION}```", tests, {})


def scored(scorers: RewardScorers, make: Callable[[int], ScoreRequest], seconds: float) -> float:
    """Samples a second."""
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        results = asyncio.run(scorers.score([make(count + k) for k in range(BATCH)], deadline_s=600))
        wrong = [result for result in results if not isinstance(result.outcome, Scored) or result.outcome.score != 1]
        if wrong:
            raise SystemExit(f"not the verdict that it must be: {wrong[0]}")
        count += BATCH
    return count / (time.perf_counter() - start)


def plain(file: Path, workers: int, seconds: float) -> float:
    """Runs a second of the interpreter, started anew each time."""

    def run(k: int) -> None:
        done = subprocess.run(
            [sys.executable, str(file)], input=f"{k} 1\n", capture_output=True, text=True, timeout=60, check=True
        )
        assert int(done.stdout) == k + 1

    start, count = time.perf_counter(), 0
    with ThreadPoolExecutor(workers) as pool:
        while time.perf_counter() - start < seconds:
            list(pool.map(run, range(count, count + BATCH)))
            count += BATCH
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    scorers = RewardScorers(RewardOptions(PoolOptions(worker_count=chosen.workers, timeout_s=60)))
    names = ("sandbox", "calls", "subprocess")
    best = dict.fromkeys(names, 0.0)
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "program.py")
            file.write_text(CODE)
            scored(scorers, program, 0.1)  # both workers' sandboxes start
            for round_number in range(ROUNDS):
                rates = (
                    scored(scorers, program, chosen.seconds),
                    scored(scorers, calls, chosen.seconds),
                    plain(file, chosen.workers, chosen.seconds),
                )
                print(
                    f"round {round_number + 1}: "
                    + ", ".join(f"{n} {r:.1f}/s" for n, r in zip(names, rates, strict=True))
                )
                best = {name: max(best[name], rate) for name, rate in zip(names, rates, strict=True)}
    finally:
        scorers.shutdown()
    print(f"\nbest of {ROUNDS}, {chosen.workers} workers")
    for name, rate in best.items():
        print(f"{name:<12}{rate:8.1f} /s   {rate / best['subprocess']:6.2f} x subprocess")


if __name__ == "__main__":
    main()
