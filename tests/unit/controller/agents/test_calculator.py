from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.controller.agents.tools.calculator import CalculationError, calculate, written


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("2 + 3 * 4", "14"),
        ("(2+3)*4 =", "20"),
        ("2^10", "1024"),
        ("7/2", "3.5"),
        ("7//2", "3"),
        ("-7 % 3", "2"),
        ("1,000,000 - 1", "999999"),
        ("3 × 4 ÷ 6 − 1", "1"),
        ("sqrt(2)", "1.41421356237"),
        ("max(1, 2, 3) + round(2.5)", "5"),
        ("round(pi, 2)", "3.14"),
        ("1e3", "1000"),
        ("2**0.5", "1.41421356237"),
        ("4**-1", "0.25"),
        ("gcd(12, 18)", "6"),
    ],
)
def test_values(expression: str, result: str) -> None:
    assert written(calculate(expression)) == result


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "no arithmetic expression"),
        ("2 +", "no arithmetic expression"),
        ("1/0", "division by zero"),
        ("9**9**9", "too large"),
        ("9" * 1000 + "*" + "9" * 400, "characters"),
        ("2**5000", "too large"),
        ("1e308*10", "not a real number"),
        ("(-1)**0.5", "not a real number"),
        ("round(5, -100000000)", "digits"),
        ("sqrt(-1)", "math domain"),
        ("__import__('os')", "not known"),
        ("().__class__", "only numbers"),
        ("'a'*10", "only numbers"),
        ("[1,2][0]", "only numbers"),
        ("x + 1", "x is not known"),
        ("lambda: 1", "only numbers"),
        ("True", "only numbers"),
        ("abs(*[1])", "only numbers"),
        ("round(1, ndigits=2)", "round is not known"),
        ("-" * 200 + "1", "nested"),
        ("exp(1000)", "too large"),
    ],
)
def test_refusals(expression: str, problem: str) -> None:
    with pytest.raises(CalculationError, match=problem.replace("(", r"\(")):
        calculate(expression)


@given(st.text(alphabet="0123456789.+-*/%^() ,eE=abcdgilmnoqrstx_'\"[]{}:", max_size=60))
def test_whatever_is_written_has_a_value_or_a_refusal_at_once(expression: str) -> None:
    began = time.perf_counter()
    try:
        value = calculate(expression)
    except CalculationError:
        value = 0
    assert isinstance(value, int) or math.isfinite(value)
    assert time.perf_counter() - began < 5
