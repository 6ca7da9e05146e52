"""How often the verifiers agree with an independent grader: answers of which it is known whether they are right.

    python benchmarks/reward_agreement.py [--pairs 250] [--seed 0] [--math-verify] [--show 20]

Each family makes pairs of a gold and an answer, equal ones and near misses (`answer_pairs`): the truth is known by how
they are made, and is compared by `Fraction` or by sympy, never by our own code. Each answer is put into a response in
one of several ways, those written by hand in all of them. "False positive" means rewarded though wrong; "bad gold"
that the verifier refused the row. With a false positive the exit code is 1.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from answer_pairs import FAMILIES
from answer_pairs.by_hand import PAIRS
from answer_pairs.pair import Pair

from argosy.reward.verifiers import algebra, find_verifier
from argosy.reward.verifiers.scoring import score
from argosy.types.records import Scored

THOUGHT = "First 3 and 4 make 7, then we look at what is left over. "
WAYS = {
    "lighteval/MATH": (
        r"{}\boxed{{{}}}",
        r"{}So the answer is $\boxed{{{}}}$. Done with 99.",
        r"{}<answer>{}</answer>",
    ),
    "math_dapo": ("{}\nAnswer: {}", "{}\n**Answer:** {}"),
    "numina_olympiads": (r"{}$$\boxed{{{}}}$$",),
    "hiyouga/geometry3k": (r"<think>{}</think>\boxed{{{}}}",),
}
NUMERIC = {"openai/gsm8k": ("{}\n#### {}", r"{}\boxed{{{}}} is it.", "{}\nThe answer is {}")}
BY_HAND = "by hand"
NUMERIC_FAMILIES = ("whole numbers", "decimals")


@dataclass
class Table:
    """One family's confusion table."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[tuple[str, Pair, str, str]] = field(default_factory=list)

    def add(self, pair: Pair, right: bool | None, source: str, rule: str) -> None:
        if right is None:
            kind = "bad gold"
        else:
            kind = ("true" if right == pair.right else "false") + (" positive" if right else " negative")
        self.counts[kind] += 1
        if not kind.startswith("true"):
            self.wrong.append((kind, pair, source, rule))


def places(family: str) -> list[tuple[str, str]]:
    """Every data source that the family is for, with each of its ways to write an answer."""
    ways = WAYS | (NUMERIC if family in NUMERIC_FAMILIES else {})
    return [(source, way) for source, several in ways.items() for way in several]


def cases(name: str, count: int, seed: int) -> Iterator[tuple[Pair, str, str]]:
    """A family's pairs, each with a data source and the response; those by hand in every place."""
    chance = random.Random(f"{seed} {name}")
    if name == BY_HAND:
        for pair in PAIRS:
            yield from ((pair, source, way.format(THOUGHT, pair.stated)) for source, way in places(name))
        return
    for _ in range(count):
        pair = FAMILIES[name](chance)
        source, way = chance.choice(places(name))
        yield pair, source, way.format(THOUGHT * chance.randrange(4), pair.stated)


def verdict(pair: Pair, source: str, response: str) -> tuple[bool | None, str]:
    """What a verifier says of the pair: right, wrong or None; and the rule."""
    verifier = find_verifier(source)
    assert verifier is not None
    outcome = score(verifier, response, pair.gold, {})
    if not isinstance(outcome, Scored):
        return None, str(outcome)
    return outcome.parts["acc"] == 1.0, str(outcome.parts.get("rule"))


def math_verify_alone(pair: Pair) -> bool:
    """math-verify as it is usually called: on the whole texts, gold first."""
    from math_verify import parse, verify

    gold, stated = (parse(text, parsing_timeout=None) for text in (f"${pair.gold}$", rf"\boxed{{{pair.stated}}}"))
    return bool(verify(gold, stated, timeout_seconds=None))


def rows(tables: dict[str, Table]) -> Iterator[str]:
    yield "| family | pairs | right, paid | wrong, not paid | **false positives** | false negatives | bad gold |"
    yield "|---|---|---|---|---|---|---|"
    total: collections.Counter[str] = collections.Counter()
    for name, table in [*tables.items(), ("**all**", Table(total))]:
        kinds = ("true positive", "true negative", "false positive", "false negative", "bad gold")
        yield f"| {name} | {table.counts.total()} | " + " | ".join(str(table.counts[kind]) for kind in kinds) + " |"
        total.update(table.counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=250, help="pairs of each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=20, help="most disagreements that are listed, of each kind")
    parser.add_argument("--math-verify", action="store_true", help="also what math-verify alone says of the pairs")
    parser.add_argument("--only", help="one family")
    arguments = parser.parse_args()
    algebra.prepare()
    names = [name for name in (*FAMILIES, BY_HAND) if arguments.only in (None, name)]
    tables, alone = {name: Table() for name in names}, {name: Table() for name in names}
    started = time.perf_counter()
    for name in names:
        for pair, source, response in cases(name, arguments.pairs, arguments.seed):
            right, rule = verdict(pair, source, response)
            tables[name].add(pair, right, source, rule)
            if arguments.math_verify:
                alone[name].add(pair, math_verify_alone(pair), "math-verify", "")
    print("\n".join(rows(tables)))
    if arguments.math_verify:
        print("\nmath-verify alone:\n" + "\n".join(rows(alone)))
    print(f"\n{time.perf_counter() - started:.1f} s")
    for kind in ("false positive", "false negative", "bad gold"):
        found = [(name, *one[1:]) for name, table in tables.items() for one in table.wrong if one[0] == kind]
        for name, pair, source, rule in found[: arguments.show]:
            what = f"{name}, {pair.how}: gold {pair.gold!r}, stated {pair.stated!r}"
            print(f"{kind}: {what} ({source}, {rule})", file=sys.stderr)
    if any(table.counts["false positive"] for table in tables.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
