r"""Equations and inequalities, `y = 2x + 1`, `x < 3`, `0 < x \le 5`, compared by the values of their sides.

Each sign between two formulas is one relation: the difference of its sides, and its kind. Two relations are equal if
the kinds are and the differences have one constant ratio at all points, a positive one for an inequality: a relation
may be scaled, turned around, and its terms moved over. Other steps that keep the solutions (squaring, multiplying by a
letter) make another relation: `x^2 = 4` is not `x = \pm 2`. With several signs every relation must be there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from argosy.reward.verifiers.formula import Formula
from argosy.reward.verifiers.tokens import UnreadableError
from argosy.reward.verifiers.values import NoValueError, constant_ratio, in_both_bases, read_cached

_SIGN = re.compile(r"(<=|>=|==|[<>=≤≥≠]|\\(?:leqslant|geqslant|leq?|geq?|lt|gt|neq?)(?![A-Za-z]))")
_KINDS = {
    **dict.fromkeys(("<", r"\lt"), ("<", False)),
    **dict.fromkeys((">", r"\gt"), ("<", True)),
    **dict.fromkeys(("<=", r"\le", r"\leq", r"\leqslant", "≤"), ("<=", False)),
    **dict.fromkeys((">=", r"\ge", r"\geq", r"\geqslant", "≥"), ("<=", True)),
    **dict.fromkeys(("=", "=="), ("=", False)),
    **dict.fromkeys((r"\ne", r"\neq", "≠"), ("!=", False)),
}
"""Sign → the kind of relation, and whether the sides change places."""
_MOST_SIGNS = 4


@dataclass(frozen=True, slots=True)
class Relation:
    """`difference` is less than zero, or zero, or not, by `kind`."""

    kind: str
    difference: Formula


def has_relation(text: str) -> bool:
    """Whether the text, in `latex.plain` form, holds a sign of a relation."""
    return _SIGN.search(text) is not None


def read_relations(text: str) -> list[Relation]:
    """The relations of a text in `latex.plain` form. Raises UnreadableError."""
    pieces = _SIGN.split(text)
    sides, signs = [read_cached(piece) for piece in pieces[0::2]], pieces[1::2]
    if not signs or len(signs) > _MOST_SIGNS:
        raise UnreadableError(f"{len(signs)} relations")
    found = []
    for left, sign, right in zip(sides, signs, sides[1:], strict=False):
        kind, turned = _KINDS[sign]
        first, second = (right, left) if turned else (left, right)
        decimal, imaginary = left.decimal or right.decimal, left.imaginary or right.imaginary
        letters, unbased = left.letters | right.letters, left.unbased or right.unbased
        difference = Formula(("-", first.tree, second.tree), letters, decimal, imaginary, unbased)
        found.append(Relation(kind, difference))
    return found


def equal_relations(gold: str, stated: str) -> bool | None:
    r"""Whether two texts state the same relations; None if that can't be told.

    >>> equal_relations("y=2x+3", "2y-6=4x"), equal_relations("x<3", "3>x"), equal_relations("x<3", r"x \le 3")
    (True, True, False)
    """
    try:
        golds, found = read_relations(gold), read_relations(stated)
        if len(golds) != len(found):
            return None
        for one in golds:
            match = next((other for other in found if _same(one, other)), None)
            if match is None:
                return False
            found.remove(match)
    except (UnreadableError, NoValueError, ZeroDivisionError, OverflowError, RecursionError):
        return None
    return True


def _same(gold: Relation, stated: Relation) -> bool:
    left, right = gold.difference, stated.difference
    if gold.kind != stated.kind or left.letters != right.letters:
        return False
    positive = gold.kind in ("<", "<=")
    same = in_both_bases(left, right, lambda base: constant_ratio(left, right, base=base, positive=positive))
    if same is None:
        raise NoValueError("the base of a logarithm decides")
    return same
