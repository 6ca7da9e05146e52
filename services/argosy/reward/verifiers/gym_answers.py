"""Which of reasoning-gym's scorers may see a response, and which texts some of them may see.

The policy writes the answer, so no scorer may evaluate it: several of the library's give it to `eval` or to sympy's
`parse_expr`, which is `eval` too. The tables were made by reading `score_answer` of each dataset, and what it calls, in
the versions that `READ_VERSIONS` names; any other version has to be read again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from argosy.reward.verifiers.complexity import depth

READ_VERSIONS = frozenset({"0.1.25"})

NEVER_EVALUATES = frozenset(
    re.findall(
        r"\w+",
        """
    ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_alternation boxnet
    caesar_cipher calendar_arithmetic chain_sum circuit_logic coin_flip color_cube_rotation count_bits
    count_primes course_schedule cryptarithm decimal_arithmetic decimal_chain_sum dice emoji_mystery
    family_relationships figlet_font fraction_simplification futoshiki game_of_life gcd graph_color group_anagrams
    gsm_symbolic isomorphic_strings jugs kakurasu knight_swap knights_knaves largest_island lcm leg_counting
    letter_counting letter_jumble list_functions mahjong_puzzle manipulate_matrix maze mini_sudoku modulo_grid
    needle_haystack number_filtering number_format number_sequence palindrome_generation palindrome_partitioning
    path_star polynomial_equations pool_matrix power_function prime_factorization products propositional_logic
    quantum_lock ransom_note rearc rectangle_count rotate_matrix rotten_oranges rush_hour self_reference
    sentence_reordering shortest_path simple_equations simple_geometry sokoban spell_backward string_manipulation
    string_splitting string_synthesis sudoku survo syllogism time_intervals tower_of_hanoi tsumego word_ladder
    word_sequence_reversal word_sorting zebra_puzzles
        """,
    )
)
"""Datasets whose scorers compare texts, numbers and JSON, and evaluate neither the answer nor anything of the row."""

NOT_FOR_ANSWERS: Mapping[str, str] = {
    "polynomial_multiplication": "gives the response to sympy's parse_expr, which evaluates it as Python",
    "simple_integration": "gives the response to sympy's parse_expr, which evaluates it as Python",
    "intermediate_integration": "gives the response to sympy's parse_expr, which evaluates it as Python",
    "bitwise_arithmetic": "evaluates the row's metadata as Python",
    "number_sorting": "evaluates the row's answer as Python",
    "codeio": "compares trees, which a short response can make take very long",
    "rubiks_cube": "takes any amount of memory for a short response",
    "game_of_life_halting": "pays for any response, if the right one is any but an empty text",
}
"""Dataset → what its scorer does that it may not."""

_ARITHMETIC = re.compile(r"[\d\s+*/().-]{1,200}", re.ASCII)
_LONG_LITERAL = re.compile(r"\d{12}")
_COMPLEX = re.compile(r"[\d\s+.()ij*-]{1,100}", re.ASCII | re.IGNORECASE)
_MOST_DEPTH = 20
_MOST_LITERAL = 10_000


def is_arithmetic(text: str) -> bool:
    """Only digits, `+ - * /`, dots and brackets, and no power: evaluating it can neither call anything nor take long.

    >>> is_arithmetic("(3 + 4) * 5"), is_arithmetic("9**9**9"), is_arithmetic("exit()")
    (True, False, False)
    """
    return (
        _ARITHMETIC.fullmatch(text) is not None
        and re.search(r"\*\s*\*", text) is None
        and _LONG_LITERAL.search(text) is None
        and depth(text) <= _MOST_DEPTH
    )


def is_literal(text: str) -> bool:
    """A Python literal: evaluating it gives what is written there.

    >>> is_literal("[[0, 1], [1, 0]]"), is_literal("[1] * 10**9"), is_literal("[open('x')]")
    (True, False, False)
    """
    if len(text) > _MOST_LITERAL or depth(text) > _MOST_DEPTH:
        return False
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _is_literal_or_right(text: str, entry: Mapping[str, Any]) -> bool:
    """A right answer is found by comparing texts, before anything is evaluated."""
    return text == entry["answer"] or text in entry["metadata"].get("valid_answers", ()) or is_literal(text)


_Guard = Callable[[str, Mapping[str, Any]], bool]

GUARDS: Mapping[str, tuple[_Guard, str]] = {
    "countdown": (lambda text, _entry: is_arithmetic(text), ")"),
    "puzzle24": (lambda text, _entry: is_arithmetic(text), ")"),
    "binary_matrix": (_is_literal_or_right, ""),
    "spiral_matrix": (_is_literal_or_right, ""),
    "string_insertion": (_is_literal_or_right, ""),
    "n_queens": (_is_literal_or_right, ""),
    # Its score of "nan" is 1: min(1.0, exp(-nan)).
    "complex_arithmetic": (lambda text, _entry: _COMPLEX.fullmatch(text) is not None, ""),
}
"""Dataset → which texts its scorer may see, and what it sees instead of any other: a text that it can't read."""


def as_made(name: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata as the dataset made them: JSON has no tuples, and ARC's scorers compare with tuples."""
    output = metadata.get("output")
    if name in ("arc_agi", "rearc") and isinstance(output, list):
        return {**metadata, "output": tuple(tuple(row) for row in output)}
    return dict(metadata)


def refusal(name: str, version: str) -> str:
    """Why the scorer of a dataset may not be used with the library's version; empty if it may."""
    if version not in READ_VERSIONS:
        known = ", ".join(sorted(READ_VERSIONS))
        return f"is of reasoning-gym {version}; the versions that were read for what their scorers evaluate: {known}"
    if name in NEVER_EVALUATES or name in GUARDS:
        return ""
    return NOT_FOR_ANSWERS.get(name, "isn't known not to evaluate the response")


def shown(name: str, text: str, entry: Mapping[str, Any]) -> str:
    """What the scorer of a dataset gets to see of an answer."""
    if name not in GUARDS:
        return text
    guard, instead = GUARDS[name]
    return text if guard(text, entry) else instead
