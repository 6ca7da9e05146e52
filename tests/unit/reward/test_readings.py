"""Texts with the gold's digits in them that state another value, several, or none (cases A1, A6, A13, A18)."""

from __future__ import annotations

import pytest

from argosy.reward.verifiers import find_verifier
from argosy.reward.verifiers.latex import squeezed
from argosy.types.records import Scored

GSM8K = "openai/gsm8k"
MATH = "lighteval/MATH"


def score(source: str, response: str, gold: str) -> float:
    verifier = find_verifier(source)
    assert verifier is not None
    found = verifier.verify(response, gold, {})
    assert isinstance(found, Scored), found
    return found.score


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5 million", "5000000"),
        ("5 million dollars", "5000000"),
        (r"5\text{ million}", "5000000"),
        (r"5\text{ million dollars}", "5000000"),
        ("$2.5 billion", "2500000000"),
        ("5 thousand", "5000"),
        ("5 hundred thousand", "500000"),
        ("5 Trillion", "5000000000000"),
        ("5 dozen eggs", "60"),
    ],
)
def test_a1_scale_words_multiply(text: str, value: str) -> None:
    for source, response in ((GSM8K, f"#### {text}"), (GSM8K, f"The answer is {text}."), (MATH, rf"\boxed{{{text}}}")):
        assert score(source, response, value) == 1
        assert score(source, response, "5") == 0
        assert score(source, response, "2.5") == 0
    assert score(GSM8K, f"so it is {text}", "5") == 0


@pytest.mark.parametrize(
    "text",
    ["5 squared", "5 cubed", "5 halves", "5 thousandths", r"5\text{ squared}", r"5\text{ tenths}", "5 factorial"],
)
def test_a1_words_that_make_another_number_are_no_units(text: str) -> None:
    for response in (f"#### {text}", f"The answer is {text}.", rf"\boxed{{{text}}}", f"so it is {text}"):
        assert score(GSM8K, response, "5") == 0
        assert score(MATH, response, "5") == 0


@pytest.mark.parametrize(
    "text", ["5 apples", "5 cm", r"5\text{ cm}", "5 dollars per hour", "5 quarters", "5 square feet"]
)
def test_a1_units_still_do_not_count(text: str) -> None:
    assert score(GSM8K, f"#### {text}", "5") == 1
    assert score(MATH, rf"\boxed{{{text}}}", "5") == 1


@pytest.mark.parametrize(
    "text",
    [
        "5 6",
        "5 (or 6)",
        "5 or 6",
        "5 apples or 6",
        "5 apples, or 6",
        "5, maybe 6",
        "5 perhaps 6",
        "5 plus 6",
        "5 is wrong",
    ],
)
def test_a6_several_candidates_or_a_part_are_no_answer(text: str) -> None:
    for response in (
        f"#### {text}",
        f"<answer>{text}</answer>",
        f"The answer is {text}",
        rf"\boxed{{\text{{{text}}}}}",
    ):
        assert score(GSM8K, response, "5") == 0


@pytest.mark.parametrize("text", ["not 5", "Not 5", "not equal to 5", r"not \$5", "anything other than 5", "never 5"])
def test_a6_a_denied_number_is_no_answer(text: str) -> None:
    for response in (f"<answer>{text}</answer>", f"The answer is {text}", f"So it is {text}"):
        assert score(GSM8K, response, "5") == 0
    assert score(GSM8K, "#### not 5", "5") == 0
    assert score(GSM8K, "It can't be 5", "5") == 0
    assert score(GSM8K, "The answer is not hard to find: 5", "5") == 1


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        (r"30 \text{ or } 40", "30"),
        (r"2\sqrt{3} \text{ or } 5", r"2\sqrt{3}"),
        (r"2\sqrt{3}\text{ million}", r"2\sqrt{3}"),
        (r"\text{not }2\sqrt{3}", r"2\sqrt{3}"),
        (r"x+1 \text{ or } x+2", "x+1"),
        (r"\infty-1", r"\infty"),
        (r"2\infty", r"\infty"),
    ],
)
def test_a6_a_text_box_that_changes_the_answer_counts(text: str, gold: str) -> None:
    assert score(MATH, rf"\boxed{{{text}}}", gold) == 0


def test_infinity_and_units_in_boxes_are_still_right() -> None:
    assert score(MATH, r"\boxed{+\infty}", r"\infty") == 1
    assert score(MATH, r"\boxed{2\sqrt{3}\text{ cm}}", r"2\sqrt{3}") == 1


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        ("1 2", "12", 0),
        (r"1\,2", "12", 0),
        (r"1\ 2", "12", 0),
        ("1 1/2", "11/2", 0),
        ("1 1/2", "3/2", 1),
        (r"3\,480", "3480", 1),
        (r"12\,600", "12600", 1),
        (r"30\,\text{cm}", "30", 1),
        (r"\frac1 2", r"\frac{1}{2}", 1),
    ],
)
def test_a1_a_space_between_digits_does_not_join_them(text: str, gold: str, right: int) -> None:
    assert score(MATH, rf"\boxed{{{text}}}", gold) == right


def test_a1_squeezed_keeps_numbers_apart() -> None:
    assert squeezed("x + 1 2") != squeezed("x + 12")
    assert squeezed("x  +1") == squeezed("x+ 1")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("31=30", 0),
        ("1=2=30", 0),
        ("31 = 30 cm", 0),
        ("5+25=30", 1),
        ("x=30", 1),
        ("60/2=30", 1),
        ("30=30", 1),
        (r"\frac{60}{2}=30", 1),
    ],
)
def test_a13_an_equation_between_two_numbers_is_no_answer(text: str, right: int) -> None:
    assert score(GSM8K, rf"\boxed{{{text}}}", "30") == right
    assert score(MATH, rf"\boxed{{{text}}}", "30") == right
    assert score(GSM8K, f"Answer: {text}", "30") == right


@pytest.mark.parametrize("text", ["C: or D", "C. D", "C) and B", "C: A, B", "C. D or B", "(C) (D)", "C: but D"])
@pytest.mark.parametrize("source", [MATH, "argosy/multiple_choice"])
def test_a18_a_second_letter_chooses_none(source: str, text: str) -> None:
    assert score(source, rf"\boxed{{{text}}}", "C") == 0


@pytest.mark.parametrize("text", ["C: 14 m", "C. a dog", "C) point D", "C.", r"C: \text{red and blue}"])
def test_a18_the_text_of_a_choice_is_no_second_letter(text: str) -> None:
    assert score(MATH, rf"\boxed{{{text}}}", "C") == 1
