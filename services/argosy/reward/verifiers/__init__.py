"""Which verifier judges which data source: the literal tables below.

A data source that is in no table is an error, never a score. Rules that all verifiers share (where the answer is,
what counts as equal) are in `extraction`, `numbers` and docs/rewards.md.
"""

from __future__ import annotations

from argosy.reward.verifiers import exact, formatting, maths, numeric, puzzles
from argosy.reward.verifiers.base import Verifier

GSM8K = Verifier("gsm8k", numeric.verify)
MATH = Verifier("math", maths.verify, maths.prepare)

VERIFIERS: dict[str, Verifier] = {
    "openai/gsm8k": GSM8K,
    "gsm8k": GSM8K,
    "madrylab/gsm8k-platinum": GSM8K,
    "lighteval/MATH": MATH,
    "DigitalLearningGmbH/MATH-lighteval": MATH,
    "HuggingFaceH4/MATH-500": MATH,
    "hendrycks/competition_math": MATH,
    "EleutherAI/hendrycks_math": MATH,
    "argosy/math": MATH,
    "argosy/numeric_match": Verifier("numeric_match", numeric.verify),
    "argosy/exact_match": Verifier("exact_match", exact.verify),
    "argosy/format": Verifier("format", formatting.verify),
}
"""Data source → verifier."""

PREFIXES: dict[str, Verifier] = {
    "reasoning_gym/": Verifier("reasoning_gym", puzzles.verify),
}
"""Prefix of a data source → verifier: `reasoning_gym/chain_sum` and its siblings, as `argosy data make` writes them."""


def find_verifier(data_source: str) -> Verifier | None:
    """The verifier of a data source; None when there is none."""
    if data_source in VERIFIERS:
        return VERIFIERS[data_source]
    return next((verifier for prefix, verifier in PREFIXES.items() if data_source.startswith(prefix)), None)


def known_sources() -> tuple[str, ...]:
    """Every data source with a verifier; a prefix is shown with a star, "reasoning_gym/*"."""
    return (*VERIFIERS, *(f"{prefix}*" for prefix in PREFIXES))
