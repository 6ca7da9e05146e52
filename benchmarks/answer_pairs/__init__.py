"""Pairs of a gold answer and a stated one, of which it is known by construction whether they say the same."""

from __future__ import annotations

from answer_pairs import formulas, numbers, structures
from answer_pairs.pair import Family

FAMILIES: dict[str, Family] = {**numbers.FAMILIES, **formulas.FAMILIES, **structures.FAMILIES}
"""Name → a maker of one pair from a random generator."""
