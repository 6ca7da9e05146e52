"""The reward of both sides: the share of vowels among an answer's letters.

It is cheap, and it differs between the samples of every group. A right-or-wrong reward would give groups without
spread, which Argosy doesn't compute at all and TRL does: that would be unequal work.
"""

from __future__ import annotations

from typing import Any

VOWELS = frozenset("aeiouAEIOU")


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """As verl's custom reward functions are called."""
    del data_source, ground_truth, extra_info
    letters = [character for character in solution_str if character.isalpha()]
    return sum(character in VOWELS for character in letters) / max(len(letters), 1)
