"""Equations, inequalities, lists, tuples, intervals, matrices, choices and words. The truth is by construction."""

from __future__ import annotations

import random
from fractions import Fraction
from math import gcd

from answer_pairs.pair import Family, Pair, styled


def linear(a: int, b: int, c: int) -> str:
    """`ax + by + c` as LaTeX, without zero terms."""
    terms = []
    for factor, letter in ((a, "x"), (b, "y"), (c, "")):
        if factor:
            size = "" if letter and abs(factor) == 1 else str(abs(factor))
            terms.append(("-" if factor < 0 else "+") + size + letter)
    return "".join(terms).removeprefix("+") or "0"


def proportional(left: tuple[int, int, int], right: tuple[int, int, int]) -> bool:
    pairs = [(i, j) for i in range(3) for j in range(3)]
    return all(left[i] * right[j] == left[j] * right[i] for i, j in pairs)


def equation(chance: random.Random) -> Pair:
    """A line: any multiple of its equation is the same line, in any arrangement."""
    line = tuple(chance.choice([-1, 1]) * chance.randrange(1, 9) for _ in range(3))
    a, b, c = line
    k = chance.choice([-3, -2, 2, 3])
    gold = f"{linear(a, b, c)}=0"
    if chance.random() < 0.5:
        forms = {
            "scaled": f"{linear(k * a, k * b, k * c)}=0",
            "moved": f"{linear(a, b, 0)}={-c}",
            "sides exchanged": f"0={linear(a, b, c)}",
            "moved, scaled": f"{linear(k * a, 0, 0)}={linear(0, -k * b, -k * c)}",
        }
        how = chance.choice(list(forms))
        return Pair(gold, styled(forms[how], chance), True, how)
    other = list(line)
    place = chance.randrange(3)
    other[place] += chance.choice([-2, -1, 1, 2])
    changed = (other[0], other[1], other[2])
    slips = {
        "one coefficient": (f"{linear(*changed)}=0", proportional((a, b, c), changed)),
        "right-hand side": (f"{linear(a, b, c)}=1", False),
        "value alone": ("0", False),
        "no equation": (linear(a, b, c), False),
        "letters exchanged": (f"{linear(b, a, c)}=0", proportional((a, b, c), (b, a, c))),
    }
    how = chance.choice(list(slips))
    text, right = slips[how]
    return Pair(gold, text, right, how)


def inequality(chance: random.Random) -> Pair:
    bound, other = chance.randrange(-9, 10), chance.randrange(-9, 10)
    sign, flipped = chance.choice([("<", ">"), (">", "<"), (r"\le", r"\ge"), (r"\ge", r"\le")])
    answers = {
        "same": (f"x {sign} {bound}", True),
        "exchanged": (f"{bound} {flipped} x", True),
        "other bound": (f"x {sign} {other}", other == bound),
        "flipped": (f"x {flipped} {bound}", False),
        "equation": (f"x = {bound}", False),
        "bound alone": (f"{bound}", False),
    }
    how = chance.choice(list(answers))
    text, right = answers[how]
    return Pair(f"x {sign} {bound}", text, right, how)


def members(chance: random.Random) -> list[str]:
    found: dict[Fraction, str] = {}
    while len(found) < chance.randrange(2, 6):
        value = Fraction(chance.randrange(-20, 40), chance.choice([1, 1, 1, 2, 3]))
        found[value] = str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    return list(found.values())


def bare_list(chance: random.Random) -> Pair:
    """Without brackets, or a set: the order doesn't count, every member does."""
    golds = members(chance)
    shuffled = chance.sample(golds, len(golds))
    slips = {
        "one left out": golds[1:],
        "one too many": [*golds, "77"],
        "one twice": [*golds, golds[0]],
        "one changed": [*golds[:-1], "77"],
        "one alone": golds[:1],
        "a range of candidates": [str(k) for k in range(-20, 41)],
    }
    if chance.random() < 0.5:
        forms = {
            "same": ", ".join(golds),
            "permuted": ", ".join(shuffled),
            "no spaces": ",".join(shuffled),
            "set": r"\{" + ", ".join(shuffled) + r"\}",
            "and": ", ".join(shuffled[:-1]) + r" \text{ and } " + shuffled[-1],
            "named": ", ".join(f"x = {member}" for member in shuffled),
        }
        how = chance.choice(list(forms))
        return Pair(", ".join(golds), forms[how], True, how)
    how = chance.choice(list(slips))
    return Pair(", ".join(golds), ", ".join(slips[how]), False, how)


def point(chance: random.Random) -> Pair:
    """In round brackets the order counts."""
    golds = members(chance)[:3]
    gold = f"({', '.join(golds)})"
    turned = golds[1:] + golds[:1]
    answers = {
        "same": (rf"\left({','.join(golds)}\right)", True),
        "named": (f"P = ({', '.join(golds)})", True),
        "turned": (f"({', '.join(turned)})", turned == golds),
        "one changed": (f"({', '.join([*golds[:-1], '77'])})", False),
        "one left out": (f"({', '.join(golds[1:])})", False),
        "one too many": (f"({', '.join([*golds, '0'])})", False),
        "square brackets": (f"[{', '.join(golds)}]", False),
    }
    how = chance.choice(list(answers))
    text, right = answers[how]
    return Pair(gold, text, right, how)


def interval(chance: random.Random) -> Pair:
    low = chance.randrange(-9, 5)
    high = low + chance.randrange(1, 9)
    left, right = chance.choice("(["), chance.choice(")]")
    union = chance.random() < 0.4
    tail = rf" \cup ({high + 1}, \infty)" if union else ""
    gold = f"{left}{low}, {high}{right}{tail}"
    answers = {
        "same": (rf"\left{left}{low},{high}\right{right}{tail}", True),
        "membership": (rf"x \in {gold}", True),
        "other bracket": (f"{'[' if left == '(' else '('}{low}, {high}{right}{tail}", False),
        "bound": (f"{left}{low}, {high + 1}{right}{tail}", False),
        "one part": (f"{left}{low}, {high}{right}", not union),
        "more": (rf"{gold} \cup [{high + 30}, {high + 40}]", False),
    }
    if union:
        answers["parts exchanged"] = (rf"({high + 1}, \infty) \cup {left}{low}, {high}{right}", True)
    how = chance.choice(list(answers))
    text, is_right = answers[how]
    return Pair(gold, text, is_right, how)


def matrix(chance: random.Random) -> Pair:
    rows, columns = chance.randrange(1, 4), chance.randrange(1, 4)
    values = [[chance.randrange(-9, 10) for _ in range(columns)] for _ in range(rows)]

    def shown(table: list[list[int]], kind: str = "pmatrix", scale: int = 1) -> str:
        lines = [
            " & ".join(f"{v}" if scale == 1 else rf"\frac{{{v * scale}}}{{{scale}}}" for v in row) for row in table
        ]
        return rf"\begin{{{kind}}} " + r" \\ ".join(lines) + rf" \end{{{kind}}}"

    changed = [list(row) for row in values]
    changed[-1][-1] += 1
    turned = [list(column) for column in zip(*values, strict=True)]
    answers = {
        "same": (shown(values), True),
        "no spaces": (shown(values).replace(" ", ""), True),
        "unreduced": (shown(values, scale=2), True),
        "square": (shown(values, "bmatrix"), True),
        "one changed": (shown(changed), False),
        "transposed": (shown(turned), turned == values),
        "first row": (shown(values[:1]), rows == 1),
    }
    how = chance.choice(list(answers))
    text, right = answers[how]
    return Pair(shown(values), text, right, how)


def letter(chance: random.Random) -> Pair:
    gold, other = chance.sample("ABCDE", 2)
    answers = {
        "boxed text": (rf"\text{{{gold}}}", True),
        "brackets": (f"({gold})", True),
        "with its text": (f"{gold}: 14 m", True),
        "bold": (rf"\textbf{{({gold})}}", True),
        "other": (rf"\text{{{other}}}", False),
        "two": (f"{gold}, {other}", False),
        "both run together": (f"{other}{gold}", False),
        "other with its text": (f"{other}: not {gold}", False),
    }
    how = chance.choice(list(answers))
    text, right = answers[how]
    return Pair(gold, text, right, how)


NAMES = ("Evelyn", "Tuesday", "ellipse", "Blue Whale", "even", "Paris", "no solution")


def word(chance: random.Random) -> Pair:
    gold, other = chance.sample(NAMES, 2)
    answers = {
        "same": (gold, True),
        "text": (rf"\text{{{gold}}}", True),
        "case": (gold.upper(), True),
        "full stop": (f"{gold}.", True),
        "other": (other, False),
        "both": (f"{gold} or {other}", False),
        "part": (gold[:-1], False),
        "longer": (f"{gold}s", False),
    }
    how = chance.choice(list(answers))
    text, right = answers[how]
    return Pair(rf"\text{{{gold}}}", text, right, how)


def ratio(chance: random.Random) -> Pair:
    """`a:b`: by our rules a text, unless it is reduced."""
    a, b = chance.randrange(1, 30), chance.randrange(1, 30)
    a, b = a // gcd(a, b), b // gcd(a, b)
    answers = {
        "same": (f"{a}:{b}", True),
        "spaces": (f"{a} : {b}", True),
        "exchanged": (f"{b}:{a}", a == b),
        "one more": (f"{a + 1}:{b}", False),
    }
    how = chance.choice(list(answers))
    text, right = answers[how]
    return Pair(f"{a}:{b}", text, right, how)


FAMILIES: dict[str, Family] = {
    "equations": equation,
    "inequalities": inequality,
    "lists and sets": bare_list,
    "points": point,
    "intervals": interval,
    "matrices": matrix,
    "choices": letter,
    "words": word,
    "ratios": ratio,
}
