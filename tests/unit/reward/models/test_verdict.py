"""The number in a judge's reply: read whole, or not at all; never a 0 for what can't be read."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.reward.models.judge.verdict import Scale, read_verdict

TEN = Scale(0, 10)
WIDE = Scale(-1e6, 1e6)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Score: 7", 7), ("**Score:** 7.5.", 7.5), ("Score: **7**", 7), ("Final score is 7", 7), ("Score (0-10): 7", 7),
        ("Rating = 10", 10), ("Score: 1e0", 1), ("Score: 7e-1", 0.7), ("Score: +7", 7), ("Score: .5", 0.5),
        ("Score: 0", 0), ("Score: -0", 0), ("[[8]]", 8), ("<score> 9 </score>", 9), (r"\boxed{3}", 3),
        ('{"score": 7, "why": "fine"}', 7), ("{'rating': 2}", 2), ("7", 7), ("Good.\n7", 7), ("7.", 7),
        ("Score: 7/10", 7), ("Score: 4/5", 8), ("Score: 7 out of 10.", 7), ("Score: 85%", 8.5), ("10/10", 10),
        ("Score: 3\nOverall, score: 6", 6), ("[[2]] no, Score: 6", 2),
        ("I gave [[6]], no, [[2]]", 2), ("Score: [[7]]", 7), (r"Score: \boxed{7}", 7),
        ("So the final score is 4", 4), ('```json\n{"score": "6/10"}\n```', 6),
        ("Score: 7, since 3 of 4 hold", 7), ("Score: 7 - well done", 7), ("Score: 7 (8 was near)", 7),
        ("<think>Score: 2</think>Score: 8", 8), ("Score: 7 points", 7),
    ],
)  # fmt: skip
def test_reads(text: str, verdict: float) -> None:
    assert read_verdict(text, TEN) == pytest.approx(verdict)


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "good", "I would say 7", "seven", "Score: seven", "Score:", "Score: ?", "Score: n/a", "Score: nan",
        "Score: inf", "Score: 1e400", "Score: 7 or 8", "Score: 7-8", "Score: 7 to 8", "Score: 7–8", "Score: 7, 8",
        "Score: 3 5", "Score: 7th", "Score: 7B", "Score: 0x7", "Score: 1_0", "Score: 7½", "Score: 7,5", "Score: 7.5.1",
        "Score: 7/0", "Score: 7/10/10", "Score: 7:8", "Score: 7*1", "Score: 11", "Score: -1", "Score: 110%", "[[7, 8]]",
        "[[x]]", "<score>about 7</score>", "Score: 7\nScore: unsure", "<think>Score: 7", "7. Good", "7 apples",
        "Score: --7", "Score: 7e", "Score: 7e5", "1,000", "Score: 7±1", "[[]]",
    ],
)  # fmt: skip
def test_unreadable_is_no_number(text: str) -> None:
    assert read_verdict(text, TEN) is None


@pytest.mark.parametrize(
    "text",
    [
        'Score: 2\nThe answer claims "Score: 10", which it does not deserve.',
        "It says: Score: 10. That is wrong.\n\n**Score:** 2",
        '{"score": 2, "reason": "the answer says Score: 10"}',
        'The answer ends with [[10]] and "score": 10.\nFinal score: 2\nI ignored its [[10]].',
    ],
)
def test_a_quoted_mark_is_not_the_verdict(text: str) -> None:
    assert read_verdict(text, TEN) == 2


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("Score: 1", 1),  # of "Score: 10"
        ('The answer claims "Score: 10", but', 10),
        ("It says:\nScore: 10\nThat is", 10),
        ("Rating = 7\nor rather", 7),
        ("Good.\n7\n", 7),  # of a list, perhaps
        ("[[10]]", 10),
        ('{"score": 7}, no: {', 7),
    ],
)
def test_of_a_reply_that_was_cut_what_may_go_on_is_no_verdict(text: str, whole: float) -> None:
    assert read_verdict(text, TEN) == whole
    assert read_verdict(text, TEN, cut=True) is None


@pytest.mark.parametrize(
    "text",
    ["Fine.\nScore: 7\n", "Fine.\n**Score:** 7\r\n\n \t", "<score>7</score>\n", '{"score": 7, "why": "fine"}\n\n\n'],
)
def test_of_a_reply_that_was_cut_after_its_end_the_verdict_counts(text: str) -> None:
    assert read_verdict(text, TEN, cut=True) == 7


def test_of_a_scale_that_begins_elsewhere_fractions_are_unreadable() -> None:
    scale = Scale(1, 5)
    assert read_verdict("Score: 4/5", scale) == 4
    assert read_verdict("Score: 7/10", scale) is None
    assert read_verdict("Score: 50%", scale) is None
    assert read_verdict("Score: 0", scale) is None
    assert scale.share(3) == 0.5


def spellings(value: float) -> list[str]:
    return [repr(value), f"{value:e}", f"{value:.17g}", f"{value:+}", f"{value:E}", repr(value).replace("-", "−")]


PROSE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<[\\")).filter(
    lambda text: not any(word in text.lower() for word in ("score", "rating", "grade", "mark", "think"))
)


@given(st.floats(-1e6, 1e6), PROSE, st.sampled_from(["Score: {}", "[[{}]]", "<score>{}</score>", r"\boxed{{{}}}"]))
def test_any_number_in_any_spelling_after_any_prose(value: float, prose: str, mark: str) -> None:
    for spelled in spellings(value):
        assert read_verdict(f"{prose}\n{mark.format(spelled)}", WIDE) == float(spelled.replace("−", "-"))


@given(st.text())
def test_what_is_read_is_finite_and_in_range(text: str) -> None:
    for reply in (text, f"Score: {text}", f"[[{text}]]"):
        verdict = read_verdict(reply, TEN)
        assert verdict is None or (math.isfinite(verdict) and 0 <= verdict <= 10)


@given(st.text(st.characters(exclude_categories=["Nd", "Nl", "No", "Cs"])))
def test_text_without_a_digit_is_never_a_verdict(text: str) -> None:
    assert read_verdict(text, TEN) is None
    assert read_verdict(f"Score: {text}", TEN) is None


@given(st.integers(0, 10), st.integers(0, 10), st.sampled_from([" or ", "-", " - ", " to ", "/", ", ", " ", " and "]))
def test_two_numbers_are_no_verdict(first: int, second: int, between: str) -> None:
    if between == "/":
        return
    assert read_verdict(f"Score: {first}{between}{second}", TEN) is None
