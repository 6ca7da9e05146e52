"""Formulas made and transformed by sympy. Each pair's truth is by construction, and checked by sympy itself.

A change that happens to change nothing (a coefficient of zero, say) is noticed by that check and counted as right.
"""

from __future__ import annotations

import random
from typing import Any

import sympy
from sympy import I, Rational, cos, exp, latex, log, pi, sin, sqrt, symbols, tan

from answer_pairs.pair import Family, Pair, styled

x, y, t = symbols("x y t", positive=True)


def same(left: Any, right: Any) -> bool:
    """sympy's own verdict, to 40 digits at random points and, where it can, by simplification."""
    difference = left - right
    if difference == 0:
        return True
    generator = random.Random(7)
    for _ in range(4):
        point = {symbol: Rational(generator.randrange(100, 999), 321) for symbol in difference.free_symbols}
        if abs(sympy.N(difference.subs(point), 40)) > sympy.Float("1e-25", 40):
            return False
    return True


def pair(gold: Any, stated: Any, how: str, chance: random.Random) -> Pair:
    notation = {"ln_notation": True, "mul_symbol": chance.choice([None, None, "dot", "times"])}
    gold_text = latex(gold, ln_notation=True)
    return Pair(gold_text, styled(latex(stated, **notation), chance), same(gold, stated), how)


def rounded(value: Any) -> Any:
    """Three decimals: right only where that is the value itself."""
    return sympy.Float(str(round(float(value), 3)), 15)


def number(chance: random.Random, most: int = 9) -> Any:
    return Rational(chance.choice([-1, 1]) * chance.randrange(1, most + 1), chance.choice([1, 1, 1, 2, 3]))


def radical(chance: random.Random) -> Pair:
    a, b, c = (chance.randrange(1, 12) for _ in range(3))
    value = number(chance) + a * sqrt(b) / c
    if chance.random() < 0.5:
        raw = sympy.Add(
            value - a * sqrt(b) / c, sympy.Mul(Rational(1, c), sympy.sqrt(a * a * b, evaluate=False), evaluate=False)
        )
        return pair(value, chance.choice([raw, sympy.radsimp(1 / (1 / value)), sympy.nsimplify(value)]), "same", chance)
    slips = {
        "under the root": value - a * sqrt(b) / c + a * sqrt(b + 1) / c,
        "before the root": value + sqrt(b) / c,
        "sign": value - 2 * a * sqrt(b) / c,
        "no root": value - a * sqrt(b) / c + Rational(a * b, c),
        "rounded": rounded(value),
    }
    how = chance.choice(list(slips))
    return pair(value, slips[how], how, chance)


def polynomial(chance: random.Random) -> Pair:
    factors = [number(chance, 5) * x + number(chance, 6) for _ in range(chance.randrange(2, 4))]
    value = sympy.Mul(*factors)
    if chance.random() < 0.3:
        value = value * (y + number(chance, 4))
    expanded = sympy.expand(value)
    gold = chance.choice([value, expanded])
    if chance.random() < 0.5:
        forms = {"expanded": expanded, "factored": value, "collected": sympy.collect(expanded, x)}
        how = chance.choice(list(forms))
        return pair(gold, forms[how], how, chance)
    slips = {
        "constant": expanded + 1,
        "coefficient": expanded + number(chance, 3) * x,
        "other letter": expanded.subs(x, t),
        "exponent": expanded.subs(x, x**2),
        "sign": expanded.subs(x, -x),
        "scaled": 2 * expanded,
    }
    how = chance.choice(list(slips))
    return pair(gold, slips[how], how, chance)


def rational(chance: random.Random) -> Pair:
    a, b, c = number(chance), number(chance), number(chance)
    value = a / (x + abs(b)) + c / (x + abs(b) + 1)
    if chance.random() < 0.5:
        forms = {"together": sympy.together(value), "apart": value, "cancelled": sympy.cancel(value)}
        how = chance.choice(list(forms))
        return pair(value, forms[how], how, chance)
    slips = {"numerator": value + 1 / (x + abs(b)), "constant": value + 1, "upside down": 1 / sympy.together(value)}
    how = chance.choice(list(slips))
    return pair(value, slips[how], how, chance)


def trigonometric(chance: random.Random) -> Pair:
    k = chance.randrange(2, 6)
    bases = [
        (sin(2 * k * x), 2 * sin(k * x) * cos(k * x)),
        (cos(2 * k * x), 1 - 2 * sin(k * x) ** 2),
        (tan(k * x), sin(k * x) / cos(k * x)),
        (k * sin(x) ** 2, k - k * cos(x) ** 2),
        (cos(pi / k), cos(2 * pi - pi / k)),
    ]
    left, right = chance.choice(bases)
    if chance.random() < 0.5:
        return pair(left, chance.choice([left, right]), "identity", chance)
    slips = {
        "sign": -right,
        "constant": right + 1,
        "argument": right.subs(x, 2 * x) + Rational(1, 7),
        "scaled": 2 * right,
    }
    how = chance.choice(list(slips))
    return pair(left, slips[how], how, chance)


def logarithm(chance: random.Random) -> Pair:
    a, b = chance.randrange(2, 9), chance.randrange(2, 9)
    bases = [
        (log(x**a * y), a * log(x) + log(y)),
        (log(a * x), log(a) + log(x)),
        (exp(a * x) * exp(b), exp(a * x + b)),
        (a * log(b), log(sympy.Pow(b, a))),
        (2 ** (a * x), 4 ** (a * x / 2)),
    ]
    left, right = chance.choice(bases)
    if chance.random() < 0.5:
        return pair(left, right, "identity", chance)
    slips = {"constant": right + 1, "sign": -right, "scaled": right * 3, "argument": right + log(2)}
    how = chance.choice(list(slips))
    return pair(left, slips[how], how, chance)


def imaginary(chance: random.Random) -> Pair:
    a, b = number(chance), number(chance)
    value = a + b * I
    if chance.random() < 0.5:
        text = chance.choice(
            [f"{latex(b)}i + {latex(a)}", latex(value), f"{latex(a)} {'+' if b > 0 else ''} {latex(b)}i"]
        )
        return Pair(latex(value), text, True, "same")
    slips = {"conjugate": a - b * I, "exchanged": b + a * I, "real part": a, "constant": a + 1 + b * I}
    how = chance.choice(list(slips))
    return pair(value, slips[how], how, chance)


def angle(chance: random.Random) -> Pair:
    """Multiples of pi, and powers."""
    k, m, p = chance.randrange(1, 12), chance.randrange(2, 9), chance.randrange(2, 12)
    value = Rational(k, m) * pi + chance.choice([0, 0, 1, sqrt(2)])
    if chance.random() < 0.5:
        texts = [latex(value), latex(sympy.together(value)), styled(latex(value), chance)]
        if value == Rational(k, m) * pi:
            texts += [rf"\frac{{{k}}}{{{m}}}\pi", rf"{k}\pi/{m}", rf"\frac{{{k * p}\pi}}{{{m * p}}}"]
        return Pair(latex(value), chance.choice(texts), True, "same")
    slips = {
        "no pi": value.subs(pi, 1),
        "more": value + pi,
        "rounded": rounded(value),
        "squared": value * pi,
        "degrees": value.subs(pi, 180),
    }
    how = chance.choice(list(slips))
    return pair(value, slips[how], how, chance)


FAMILIES: dict[str, Family] = {
    "radicals": radical,
    "polynomials": polynomial,
    "rational functions": rational,
    "trigonometry": trigonometric,
    "logarithms and powers": logarithm,
    "complex numbers": imaginary,
    "multiples of pi": angle,
}
