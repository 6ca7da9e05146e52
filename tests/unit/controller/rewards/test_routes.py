from __future__ import annotations

import pytest

from argosy.controller.rewards.routes import choose, fits, knows

PATTERNS = {
    "rules": ("openai/gsm8k", "math/*"),
    "algebra": ("math/algebra/*",),
    "length": ("openai/gsm8k", "*"),
    "judge": ("*",),
    "nobody": (),
}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("openai/gsm8k", ("rules", "length")),  # named by both: scored by both
        ("math/geometry", ("rules",)),  # a prefix beats "*"
        ("math/algebra/1", ("algebra",)),  # a longer prefix beats a shorter one
        ("math", ("length", "judge")),  # "math/*" doesn't name "math"
        ("essays", ("length", "judge")),
    ],
)
def test_the_closest_pattern_decides(source: str, expected: tuple[str, ...]) -> None:
    assert choose(PATTERNS, source) == expected


def test_nobody() -> None:
    assert choose({"rules": ("gsm8k",)}, "essays") == ()
    assert choose({}, "essays") == ()


def test_a_star_alone_is_a_name_with_an_empty_prefix_not_a_glob() -> None:
    assert fits("a*c", "abc") == -1
    assert fits("a*", "a*") > fits("a*", "ab") > fits("*", "ab") == 0
    assert knows(("x", "a*"), "abc")
    assert not knows(("x", "abc*"), "ab")
