"""Samples a second of the built-in verifiers, through the worker processes as the service runs them.

    python benchmarks/reward.py [--seconds 5] [--workers 2] [--kinds gsm8k,values,math-verify,code] [--hung 0.01]
                                [--repetitions 2] [--slow N]

Each kind is measured in turn: alone, with a share of adversarial answers (power towers, integrals, deep brackets,
long digits: texts made to cost much), and with a share of answers that really hang, until a limit ends them. No two
formulas are the same, so that no cache of parsed formulas helps. "values" are formulas that are decided by evaluating
them, "math-verify" those that need it, each in a child of its worker. "direct" is one process without workers.

Samples are offered for `--seconds` so that many are always waiting or being judged, as in a step of training; the rate
is of those judged in that time. "afterwards" are the seconds until the last of the others is judged, above all those
that were put aside for the slow lane. `--slow 0` is without a slow lane.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
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
DEADLINE_S = 600.0
"""The controller's, for the answers of a step."""
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
    in_flight: int
    """Samples that wait or are being judged at any time."""


KINDS = {
    "gsm8k": Kind("openai/gsm8k", gsm8k, ADVERSARIAL, HANGS, "5", 1024),
    "values": Kind("lighteval/MATH", values, ADVERSARIAL, HANGS, r"\sin^{-1}(x)", 512),
    "math-verify": Kind("lighteval/MATH", math_verify, ADVERSARIAL, HANGS, r"\sin^{-1}(x)", 64),
    "code": Kind(
        "codecontests",
        code,
        ("```python\nimport os\nwhile True: os.fork()\n```", "```python\nwhile True: print('x' * 1000)\n```"),
        "```python\nwhile True: pass\n```",
        json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]}),
        256,
    ),
}


@dataclass(frozen=True)
class Measured:
    rate: float
    """Samples judged in a second, while others were offered."""
    afterwards_s: float
    """Until those were judged that then still waited."""
    failed: int


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


async def pool_rate(scorers: RewardScorers, stream: Iterator[ScoreRequest], seconds: float, in_flight: int) -> Measured:
    """Offer samples for some seconds, then wait until all of them are judged."""
    offered, calls = 0, set[asyncio.Task[list[ScoreResult]]]()
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        if scorers.stats().unfinished + BATCH > in_flight:
            await asyncio.sleep(0.002)
            continue
        batch = list(itertools.islice(stream, BATCH))
        calls.add(asyncio.create_task(scorers.score(batch, deadline_s=DEADLINE_S)))
        offered += BATCH
        await asyncio.sleep(0)  # so that it is submitted
    rate = (offered - scorers.stats().unfinished) / (time.perf_counter() - started)
    stopped = time.perf_counter()
    results = [result for call in calls for result in await call]
    assert len(results) == offered
    failed = sum(not isinstance(result.outcome, Scored) for result in results)
    return Measured(rate, time.perf_counter() - stopped, failed)


def ratio(base: list[Measured], other: list[Measured]) -> str:
    """The middle of the ratios of each repetition, and how far they lie apart."""
    ratios = [there.rate / here.rate - 1 for here, there in zip(base, other, strict=True)]
    rate = statistics.median(measured.rate for measured in other)
    return f"{rate:.0f} ({statistics.median(ratios):+.0%}; {min(ratios):+.0%} … {max(ratios):+.0%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kinds", default="gsm8k,values,math-verify")
    parser.add_argument("--hung", type=float, default=0.01, help="share of adversarial and of hanging answers")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--slow", type=int, default=None, help="most workers of the slow lane")
    arguments = parser.parse_args()
    pool = PoolOptions(worker_count=arguments.workers, slow_count=arguments.slow)
    scorers = RewardScorers(RewardOptions(pool))
    share = arguments.hung
    try:
        print(f"| kind | direct/s | pool/s | with {share:.0%} adversarial | with {share:.0%} hanging | ", end="")
        print("afterwards | not scored |\n|---|---|---|---|---|---|---|", flush=True)
        for name in arguments.kinds.split(","):
            kind = KINDS[name]
            direct = f"{direct_rate(kind, min(3.0, arguments.seconds)):.0f}" if name != "code" else "–"
            # Imports, first parses, what a sample usually costs, and workers for the slow lane.
            asyncio.run(pool_rate(scorers, requests(kind, share, (kind.hangs,)), arguments.seconds / 2, kind.in_flight))
            found: tuple[list[Measured], ...] = ([], [], [])
            for _ in range(arguments.repetitions):
                for bad, measured in zip((None, kind.adversarial, (kind.hangs,)), found, strict=True):
                    stream = requests(kind, share, bad)
                    measured.append(asyncio.run(pool_rate(scorers, stream, arguments.seconds, kind.in_flight)))
            base, adversarial, hanging = found
            rate = statistics.median(measured.rate for measured in base)
            after = statistics.median(measured.afterwards_s for measured in hanging)
            failed = sum(measured.failed for several in found for measured in several)
            shown = f"{ratio(base, adversarial)} | {ratio(base, hanging)} | {after:.1f} s"
            print(f"| {name} | {direct} | {rate:.0f} | {shown} | {failed} |", flush=True)
    finally:
        scorers.shutdown()


if __name__ == "__main__":
    main()
