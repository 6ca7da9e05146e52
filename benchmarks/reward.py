"""Samples a second of the built-in verifiers, through the worker processes as the service runs them.

    python benchmarks/reward.py [--seconds 5] [--workers 2] [--kinds gsm8k,values,math-verify,code] [--hung 0.01]

Each kind is measured three times: alone, with a share of adversarial answers (power towers, integrals, deep brackets,
long digits: texts made to cost much), and with a share of answers that really hang, until a limit ends them. No two
formulas are the same, so that no cache of parsed formulas helps. "values" are formulas that are decided by evaluating
them, "math-verify" those that need it, each in a child of its worker. "direct" is one process without workers.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.pool import PoolOptions
from argosy.reward.verifiers import find_verifier
from argosy.reward.verifiers.scoring import score
from argosy.types.ids import SampleId
from argosy.types.records import Scored, ScoreRequest, ScoreResult

THOUGHT = "First we add what is given, then we look at what is left over, and simplify. " * 12
BATCH = 32
GROUP = 8
ADVERSARIAL = (
    r"\boxed{\dfrac{7^{7^{7^{7^{7}}}}}{3}}",
    r"\boxed{((30!)!)!}",
    r"\boxed{10^{10^{10}}}",
    "(" * 50_000,
    "9" * 100_000,
    r"\boxed{\int_0^1 \sin(x^3) e^{x} \log(x+1) dx}",
    r"\boxed{" + "(" * 50_000 + "}",
    r"\boxed{(((9^9)^9)^9)^9}",
    r"\boxed{(x+y+z)^{400}}",
    r"\boxed{" + "1," * 50_000 + "1}",
    "Answer: " * 20_000,
    r"\boxed{\sqrt{2+\sqrt{2+\sqrt{2+\sqrt{2+\sqrt{3}}}}}^{77} < y}",
)
HANGS = r"\boxed{\sin^{-1}(\sqrt{\cos(x^{9}+\ln(y+x)) + \ln(\sin(y^{8}))}) \cdot \tan(x)^{7} + \sqrt{x+\sqrt{y}}}"
"""math-verify works on it for minutes; every other rule leaves it to math-verify."""

Make = Callable[[int], tuple[str, Any]]


def gsm8k(k: int) -> tuple[str, Any]:
    return f"{THOUGHT}\n#### {k:,}", str(k)


def values(k: int) -> tuple[str, Any]:
    return rf"{THOUGHT}\boxed{{{k}x + \sqrt{{{4 * k}}}}}", rf"2\sqrt{{{k + k % 2}}} + {k}x"


def math_verify(k: int) -> tuple[str, Any]:
    first = k // GROUP * GROUP  # answers of one group have one gold, as in training
    return rf"{THOUGHT}\boxed{{\arcsin(\frac{{1}}{{{k + 2}}})}}", rf"\sin^{{-1}}(\frac{{2}}{{{2 * first + 4}}})"


def code(k: int) -> tuple[str, Any]:
    program = f"```python\nprint(int(input()) + {k})\n```"
    return f"{THOUGHT}\n{program}", json.dumps({"inputs": ["1\n"], "outputs": [f"{k + 1 + k % 2}\n"]})


@dataclass(frozen=True)
class Kind:
    source: str
    make: Make
    adversarial: tuple[str, ...]
    hangs: str
    gold_of_hangs: Any


KINDS = {
    "gsm8k": Kind("openai/gsm8k", gsm8k, ADVERSARIAL, HANGS, "5"),
    "values": Kind("lighteval/MATH", values, ADVERSARIAL, HANGS, r"\sin^{-1}(x)"),
    "math-verify": Kind("lighteval/MATH", math_verify, ADVERSARIAL, HANGS, r"\sin^{-1}(x)"),
    "code": Kind(
        "codecontests",
        code,
        ("```python\nimport os\nwhile True: os.fork()\n```", "```python\nwhile True: print('x' * 1000)\n```"),
        "```python\nwhile True: pass\n```",
        json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]}),
    ),
}


def requests(kind: Kind, share: float, bad: tuple[str, ...] | None) -> Iterator[ScoreRequest]:
    """Endlessly; `share` of them, spread evenly at random places, are bad ones."""
    chance = random.Random(0)
    for k in itertools.count(1):
        response, gold = kind.make(k)
        if bad is not None and chance.random() < share:
            response = bad[chance.randrange(len(bad))]
            gold = kind.gold_of_hangs if bad == (kind.hangs,) else gold
        yield ScoreRequest(SampleId(0, k, 0), kind.source, "", response, gold, {})


def direct_rate(kind: Kind, seconds: float) -> float:
    """Samples a second in this process, one after the other."""
    verifier = find_verifier(kind.source)
    assert verifier is not None
    verifier.prepare()
    started = time.perf_counter()
    for count, item in enumerate(requests(kind, 0, None), start=1):
        score(verifier, item.response_text, item.ground_truth, {})
        if time.perf_counter() - started > seconds:
            return count / (time.perf_counter() - started)
    raise AssertionError("requests don't end")


async def pool_rate(scorers: RewardScorers, stream: Iterator[ScoreRequest], seconds: float) -> tuple[float, int]:
    """Samples a second with two batches in flight, and how many of them could not be scored."""
    started, done, failed = time.perf_counter(), 0, 0

    async def batches() -> None:
        nonlocal done, failed
        while time.perf_counter() - started < seconds:
            results: list[ScoreResult] = await scorers.score(list(itertools.islice(stream, BATCH)), deadline_s=600)
            done += len(results)
            failed += sum(not isinstance(result.outcome, Scored) for result in results)

    await asyncio.gather(batches(), batches())
    return done / (time.perf_counter() - started), failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kinds", default="gsm8k,values,math-verify")
    parser.add_argument("--hung", type=float, default=0.01, help="share of adversarial and of hanging answers")
    arguments = parser.parse_args()
    scorers = RewardScorers(RewardOptions(PoolOptions(worker_count=arguments.workers)))
    share = arguments.hung
    try:
        print(f"| kind | direct/s | pool/s | with {share:.0%} adversarial | with {share:.0%} hanging | not scored |")
        print("|---|---|---|---|---|---|")
        for name in arguments.kinds.split(","):
            kind = KINDS[name]
            direct = f"{direct_rate(kind, min(3.0, arguments.seconds)):.0f}" if name != "code" else "–"
            asyncio.run(pool_rate(scorers, requests(kind, 0, None), 0.1))  # imports, first parses
            found = []
            for bad in (None, kind.adversarial, (kind.hangs,)):
                found.append(asyncio.run(pool_rate(scorers, requests(kind, share, bad), arguments.seconds)))
            rates = [rate for rate, _ in found]
            shown = [f"{rate:.0f} ({rate / rates[0] - 1:+.0%})" for rate in rates[1:]]
            failed = sum(count for _, count in found)
            print(f"| {name} | {direct} | {rates[0]:.0f} | {shown[0]} | {shown[1]} | {failed} |", flush=True)
    finally:
        scorers.shutdown()


if __name__ == "__main__":
    main()
