"""Which verifier judges which data source: the literal tables below.

A data source that is in no table is an error, never a score. Rules that all verifiers share (where the answer is,
what counts as equal) are in `extraction`, `numbers` and docs/rewards.md.
"""

from __future__ import annotations

import functools

from argosy.reward.verifiers import (
    choice,
    dapo,
    exact,
    formatting,
    geometry,
    gym_scorers,
    maths,
    numeric,
    penalties,
    puzzles,
    questions,
)
from argosy.reward.verifiers.base import Verifier
from argosy.reward.verifiers.code import CODE as SANDBOXED

GSM8K = Verifier("gsm8k", numeric.verify, options=("method",))
MATH = Verifier("math", maths.verify, maths.prepare)
NUMINA = Verifier("numina", maths.verify, maths.prepare)
DAPO = Verifier("math_dapo", dapo.verify, maths.prepare, options=("strict_box_verify",))
GEOMETRY = Verifier("geometry3k", geometry.verify, maths.prepare)
CODE = Verifier("code", SANDBOXED.verify, SANDBOXED.prepare, bounds_itself=True)
QUESTIONS = Verifier("searchR1", questions.verify_exact)

VERIFIERS: dict[str, Verifier] = {
    "openai/gsm8k": GSM8K,
    "gsm8k": GSM8K,
    "madrylab/gsm8k-platinum": GSM8K,
    "argosy/gsm8k_strict": Verifier("gsm8k_strict", numeric.verify_strict),
    "argosy/gsm8k_flexible": Verifier("gsm8k_flexible", numeric.verify_flexible),
    "lighteval/MATH": MATH,
    "DigitalLearningGmbH/MATH-lighteval": MATH,
    "HuggingFaceH4/MATH-500": MATH,
    "hendrycks/competition_math": MATH,
    "EleutherAI/hendrycks_math": MATH,
    "argosy/math": MATH,
    "math_dapo": DAPO,
    "math_dapo_reasoning": DAPO,
    "math": DAPO,
    "numina_aops_forum": NUMINA,
    "numina_synthetic_math": NUMINA,
    "numina_amc_aime": NUMINA,
    "numina_synthetic_amc": NUMINA,
    "numina_cn_k12": NUMINA,
    "numina_olympiads": NUMINA,
    "hiyouga/geometry3k": GEOMETRY,
    "searchR1_nq": QUESTIONS,
    "searchR1_triviaqa": QUESTIONS,
    "searchR1_popqa": QUESTIONS,
    "searchR1_hotpotqa": QUESTIONS,
    "searchR1_2wikimultihopqa": QUESTIONS,
    "searchR1_musique": QUESTIONS,
    "searchR1_bamboogle": QUESTIONS,
    "codecontests": CODE,
    "apps": CODE,
    "codeforces": CODE,
    "taco": CODE,
    "livecodebench": CODE,
    "argosy/code": CODE,
    "argosy/normalised_match": QUESTIONS,
    "argosy/token_f1": Verifier("token_f1", questions.verify_f1),
    "argosy/multiple_choice": Verifier("multiple_choice", choice.verify),
    "argosy/numeric_match": Verifier("numeric_match", numeric.verify, options=("method",)),
    "argosy/exact_match": Verifier("exact_match", exact.verify),
    "argosy/format": Verifier("format", formatting.verify),
    **{
        f"argosy/{name}": Verifier(name, functools.partial(penalties.verify, name), options=tuple(defaults))
        for name, defaults in penalties.DEFAULTS.items()
    },
}
"""Data source → verifier."""

PREFIXES: dict[str, Verifier] = {
    "reasoning_gym/": Verifier("reasoning_gym", puzzles.verify),
    "reasoning_gym_scorer/": Verifier(
        "reasoning_gym_scorer", gym_scorers.verify, gym_scorers.prepare, bounds_itself=True
    ),
    "aime": DAPO,
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
