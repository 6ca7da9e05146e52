"""The families of verifiers: where each looks for the answer, what it gives, and the data sources that are verl's."""

from __future__ import annotations

from typing import Any

import pytest

from argosy.reward.verifiers import find_verifier
from argosy.reward.verifiers.scoring import score
from argosy.types.records import Failed, Outcome, Scored

HASH_AND_BOX = "#### 57\nNo: \\boxed{58}, or 59"


def outcome(source: str, response: str, gold: object, **extra: Any) -> Outcome:
    verifier = find_verifier(source)
    assert verifier is not None
    return score(verifier, response, gold, extra)


def scored(source: str, response: str, gold: object, **extra: Any) -> Scored:
    result = outcome(source, response, gold, **extra)
    assert isinstance(result, Scored), result
    return result


@pytest.mark.parametrize(
    ("source", "family"),
    [
        ("openai/gsm8k", "gsm8k"),
        ("lighteval/MATH", "math"),
        ("DigitalLearningGmbH/MATH-lighteval", "math"),
        ("HuggingFaceH4/MATH-500", "math"),
        ("math_dapo", "math_dapo"),
        ("math", "math_dapo"),
        ("math_dapo_reasoning", "math_dapo"),
        ("aime2024", "math_dapo"),
        ("aime_2025", "math_dapo"),
        ("numina_aops_forum", "numina"),
        ("numina_synthetic_math", "numina"),
        ("numina_amc_aime", "numina"),
        ("numina_synthetic_amc", "numina"),
        ("numina_cn_k12", "numina"),
        ("numina_olympiads", "numina"),
        ("hiyouga/geometry3k", "geometry3k"),
        ("searchR1_nq", "searchR1"),
        ("searchR1_triviaqa", "searchR1"),
        ("searchR1_popqa", "searchR1"),
        ("searchR1_hotpotqa", "searchR1"),
        ("searchR1_2wikimultihopqa", "searchR1"),
        ("searchR1_musique", "searchR1"),
        ("searchR1_bamboogle", "searchR1"),
    ],
)
def test_verls_data_sources_have_their_verifier(source: str, family: str) -> None:
    verifier = find_verifier(source)
    assert verifier is not None
    assert verifier.name == family


@pytest.mark.parametrize(("method", "right"), [("marked", "58"), ("strict", "57"), ("flexible", "59")])
def test_gsm8k_methods_look_in_different_places(method: str, right: str) -> None:
    for gold in ("57", "58", "59"):
        result = scored("openai/gsm8k", HASH_AND_BOX, gold, reward_kwargs={"method": method})
        assert result.score == (gold == right), gold
        if method != "marked":
            assert scored(f"argosy/gsm8k_{method}", HASH_AND_BOX, gold).score == (gold == right)
    assert scored("openai/gsm8k", HASH_AND_BOX, "58").score == 1


def test_gsm8k_strict_wants_its_marker() -> None:
    result = scored("argosy/gsm8k_strict", "It is 58. Answer: 58, \\boxed{58}", "58")
    assert (result.score, result.parts["extracted"], result.parts["rule"]) == (0.0, 0.0, "no answer")
    assert scored("argosy/gsm8k_strict", "#### $1,058.00 in all" + " so it is." * 100, "1058").score == 1


def test_a6_flexible_is_the_documented_last_number_mode() -> None:
    assert scored("argosy/gsm8k_flexible", "The answer is 5, 6, or 7", "7").score == 1
    assert scored("openai/gsm8k", "The answer is 5, 6, or 7", "7").score == 0


@pytest.mark.parametrize(
    ("reward_kwargs", "said"),
    [
        ({"method": "lenient"}, "one of marked, strict, flexible"),
        ({"method": 3}, "must be a str"),
        ({"methods": "strict"}, "no option 'methods'"),
        ("strict", "must be a mapping"),
    ],
)
def test_options_that_mean_nothing_are_told(reward_kwargs: object, said: str) -> None:
    result = outcome("openai/gsm8k", "#### 58", "58", reward_kwargs=reward_kwargs)
    assert isinstance(result, Failed)
    assert result.reason == "bad_options"
    assert said in result.message


@pytest.mark.parametrize("source", ["math_dapo", "aime2024", "math"])
@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("So\nAnswer: 34", 1),
        ("Answer: $34$.", 1),
        ("**Answer:** \\(34\\)", 1),
        ("Answer: $\\boxed{34}$", 1),
        ("Answer: from 5 and 7, $\\boxed{34}$", 1),
        ("Answer: 33\nWait. Answer: 34", 1),
        ("Answer: 34\nWait. Answer: 33", 0),
        ("Answer: 34" + "\nThat was it." * 400, 1),  # verl would have lost it with its window (case A2)
        ("answer:\n\n34", 1),
        ("Answer: x = 34", 1),
        ("Answer: x + 34 = 34", 0),
        ("Answer: 034", 1),
        ("Answer: 34 \\text{ degrees}", 1),
        ("Answer: 34 or 35", 0),
        ("\\boxed{34}", 0),
        ("The answer is 34", 0),
        ("34", 0),
        ("Answer:", 0),
        ("", 0),
    ],
)
def test_math_dapo_reads_the_last_answer_line(source: str, response: str, right: int) -> None:
    result = scored(source, response, "34")
    assert (result.score, result.parts["acc"]) == ((1.0, 1.0) if right else (-1.0, 0.0))


def test_math_dapo_can_read_the_box_alone() -> None:
    strict = {"strict_box_verify": True}
    assert scored("math_dapo", "\\boxed{34} Answer: 35", "34", reward_kwargs=strict).score == 1
    assert scored("math_dapo", "Answer: 34", "34", reward_kwargs=strict).score == -1
    assert isinstance(outcome("math_dapo", "Answer: 34", ""), Failed)


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        # Hendrycks
        (r"\tfrac{3}{4}", r"\dfrac34", 1),
        (r"\left( 3, 4 \right)", "(3,4)", 1),
        (r"90^{\circ}", r"90^\circ", 1),
        (r"\$18.90", "18.9", 1),
        (".5", "0.5", 1),
        (r"x = 5", "5", 1),
        (r"\sqrt3", r"\sqrt{3}", 1),
        ("0.5", r"\frac{1}{2}", 1),
        (r"2\sqrt{3}\text{ cm}", r"2\sqrt{3}", 1),
        (r"3\sqrt{3}\text{ cm}", r"2\sqrt{3}", 0),
        (r"10\%", "10", 1),
        (r"x \in [2,3)", "[2,3)", 1),
        (r"1 \pm \sqrt{5}", r"1+\sqrt{5}, 1-\sqrt{5}", 1),
        (r"1 \pm \sqrt{5}", r"1+\sqrt{5}", 0),
        # Minerva
        (r"34 \mathrm{km}", "34", 1),
        (r"34\text{ square units}", "34", 1),
        (r"\frac{a}{b}", r"\frac ab", 1),
        (r"1,234", "1234", 1),
        # PRM800K
        (r"(1, \frac{2}{4})", r"(1,\frac12)", 1),
        (r"\begin{pmatrix} 2/4 \\ 3 \end{pmatrix}", r"\begin{pmatrix} \frac12 \\ 3 \end{pmatrix}", 1),
        (r"\begin{pmatrix} 2/4 & 3 \end{pmatrix}", r"\begin{pmatrix} \frac12 \\ 3 \end{pmatrix}", 0),
    ],
)
@pytest.mark.parametrize("source", ["lighteval/MATH", "numina_olympiads", "hiyouga/geometry3k"])
def test_what_the_normalisations_of_others_forgive(source: str, response: str, gold: str, right: int) -> None:
    assert scored(source, rf"Thus \boxed{{{response}}}.", gold).parts["acc"] == right


THINK = "<think>a + b</think>"


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (rf"{THINK}\boxed{{5}}", 1.0),
        (rf"{THINK} So it is \boxed{{\frac{{10}}{{2}}}}.", 1.0),
        (r"\boxed{5}", 0.9),
        (rf"{THINK}\boxed{{6}}", 0.1),
        (rf"{THINK}{THINK}\boxed{{5}}", 0.9),
        (rf"<think> . </think>\boxed{{5}}", 0.9),  # noqa: F541 -- as its neighbours
        (rf"{THINK}\boxed{{6}}\boxed{{5}}", 0.9),
        (rf"{THINK}\boxed{{}}", 0.0),
        (rf"Well {THINK}\boxed{{6}}", 0.0),
        (rf"{THINK}Answer: 5", 0.0),
        ("", 0.0),
    ],
)
def test_geometry3k_is_accuracy_and_a_little_format(response: str, expected: float) -> None:
    assert scored("hiyouga/geometry3k", response, "5").score == pytest.approx(expected)


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        ("<answer>The Eiffel Tower!</answer>", {"target": ["eiffel tower"]}, 1),
        ("<answer>eiffel  tower</answer>", ["Big Ben", "Eiffel Tower"], 1),
        ("<answer>eiffel tower or big ben</answer>", ["Big Ben", "Eiffel Tower"], 0),
        ("<answer>x</answer> <answer>Big Ben</answer>", "Big Ben", 1),
        ("<answer>Big Ben</answer> <answer>x</answer>", "Big Ben", 0),
        ("Big Ben", "Big Ben", 0),
        ("<think><answer>Big Ben</answer></think>", "Big Ben", 0),
        ("<answer></answer>", "the", 0),
        ("<answer>the</answer>", "a", 0),
        ("<answer>A</answer>", "a", 1),
        ("<answer>!</answer>", "?", 0),
        ("<answer>Ben</answer>", "Big Ben", 0),
    ],
)
def test_search_r1_compares_normalised_words(response: str, gold: object, right: int) -> None:
    assert scored("searchR1_nq", response, gold).score == right


@pytest.mark.parametrize("gold", ["", [], {"target": []}, {"target": ["a b", None]}, {"other": "x"}, None])
@pytest.mark.parametrize("source", ["searchR1_nq", "argosy/token_f1"])
def test_a8_an_empty_target_is_a_data_error(source: str, gold: object) -> None:
    result = outcome(source, "<answer>x</answer>", gold)
    assert isinstance(result, Failed)
    assert result.reason == "bad_ground_truth"


def test_token_f1_counts_shared_words_once_each() -> None:
    result = scored("argosy/token_f1", "<answer>red red fox</answer>", ["a red fox in snow", "cat"])
    # SQuAD: precision 2/3, recall 2/4.
    assert result.score == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert result.parts["acc"] == 0
    exact = scored("argosy/token_f1", "<answer>The Red Fox</answer>", "red fox")
    assert (exact.score, exact.parts["acc"]) == (1.0, 1.0)
    assert scored("argosy/token_f1", "<answer>" + "red fox " * 5000 + "</answer>", "red fox").score == 0


@pytest.mark.parametrize(
    ("response", "right"),
    [
        (r"\boxed{\text{C}}", 1),
        (r"\boxed{C: 14 m}", 1),
        (r"\boxed{C} ... \boxed{D}", 0),
        ("Answer: (c)", 1),
        ("The answer is option C.", 1),
        ("<answer>14 m</answer>", 1),
        ("<answer>15 m</answer>", 0),
        ("Answer: B or C", 0),
        ("Answer: C. or D", 0),
        ("Answer: C) 14 m, not (D)", 0),
        ("C", 1),
        ("Choosing C feels right", 0),
        ("", 0),
    ],
)
def test_a18_multiple_choice(response: str, right: int) -> None:
    for gold in ("C", "(C)", "c"):
        assert scored("argosy/multiple_choice", response, gold, choices=["12 m", "13 m", "14 m", "15 m"]).score == right


def test_multiple_choice_wants_a_letter_for_gold() -> None:
    result = outcome("argosy/multiple_choice", "C", "14 m")
    assert isinstance(result, Failed)
    assert result.reason == "bad_ground_truth"


@pytest.mark.parametrize(
    "response",
    [
        "<think>a</think><answer>2</answer><answer>3</answer>",
        "<think>a<think>b</think></think><answer>2</answer>",
        "<think>a</think><answer><answer>2</answer></answer>",
        "<think>a</think><answer>2</answer> so",
        "<think>a</think><answer>2</answer>\u200b.",
        "<think>\u200b</think><answer>2</answer>",
        "<think>a</think><answer>...</answer>",
        "<think>a <THINK>b</think><answer>2</answer>",
        "<think>a</think>< answer >2<answer>2</answer>",
        "<think>a</think><answer/><answer>2</answer>",
        "<think>a<answer>2</think></answer>",
        '<think class="x">a</think><answer>2</answer>',
    ],
)
def test_the_format_reward_cannot_be_had_by_tricks(response: str) -> None:
    assert scored("argosy/format", response, None).score == 0


@pytest.mark.parametrize(
    ("source", "response", "gold", "rule"),
    [
        ("openai/gsm8k", "#### 5", "5", "number"),
        ("openai/gsm8k", "none", "5", "no answer"),
        ("argosy/math", r"\boxed{x+1}", "x + 1", "spelling"),
        ("argosy/math", r"\boxed{1+x}", "x+1", "value"),
        ("argosy/math", r"\boxed{4}", "4, 9", "list"),
        ("argosy/math", r"\boxed{B}", "C", "choice"),
        ("argosy/math", r"\boxed{east}", "west", "words"),
        ("argosy/math", r"\boxed{x+5=5}", "\\sqrt{5}", "equation"),
        ("argosy/math", r"\boxed{3 > x}", "x < 3", "value"),
        ("argosy/math", r"\boxed{\arcsin(x)}", r"\sin^{-1}(x)", "math-verify"),
        ("argosy/math", r"\boxed{\int_0^1 x dx}", r"\sqrt{5}", "unevaluated"),
        ("argosy/math", r"\boxed{9^{9^{9^9}}}", r"\sqrt{5}", "costly"),
    ],
)
def test_the_rule_that_decided_is_told(source: str, response: str, gold: str, rule: str) -> None:
    assert scored(source, response, gold).parts["rule"] == rule
