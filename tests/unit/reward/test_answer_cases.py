"""Cases A: each listed input with its right verdict, judged by the verifiers directly (no processes)."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from argosy.reward.verifiers import algebra, find_verifier
from argosy.reward.verifiers.numbers import last_number
from argosy.types.records import Failed, Outcome, Scored

GSM8K = "openai/gsm8k"
MATH = "DigitalLearningGmbH/MATH-lighteval"
EXACT = "argosy/exact_match"
GYM = "reasoning_gym/chain_sum"


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> None:
    """What is slow to import is loaded before anything is timed, as workers do."""
    algebra.prepare()


def outcome(source: str, response: str, gold: object) -> Outcome:
    verifier = find_verifier(source)
    assert verifier is not None
    return verifier.verify(response, gold, {})


def score(source: str, response: str, gold: object) -> float:
    result = outcome(source, response, gold)
    assert isinstance(result, Scored), result
    assert result.score in (0.0, 1.0)
    assert result.score == result.parts["acc"]
    return result.score


@pytest.mark.parametrize("source", [GSM8K, MATH, GYM])
@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        ("She saves $3,480.00 in total.\n#### $3,480", "3480", 1),
        (r"\boxed{12{,}600}", "12600", 1),
        ("#### 3,480", "480", 0),
        ("#### -1,050", "-1050", 1),
        (r"\boxed{\$1,234,567.50}", "1234567.5", 1),
        (r"\boxed{12,34}", "1234", 0),
        (r"\boxed{(3,480)}", "3480", 1),
    ],
)
def test_a1_thousands_separators_and_currency(source: str, response: str, gold: str, right: int) -> None:
    assert score(source, response, gold) == right


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        (r"\boxed{(3,480)}", "(3,480)", 1),
        (r"\boxed{(3, 480)}", "(3,480)", 1),
        (r"\boxed{(480,3)}", "(3,480)", 0),
        (r"\boxed{3480}", "(3,480)", 0),
        (r"\boxed{(3,480)}", "(3,481)", 0),
    ],
)
def test_a1_pairs_are_not_thousands(response: str, gold: str, right: int) -> None:
    assert score(MATH, response, gold) == right


@pytest.mark.parametrize("source", [GSM8K, MATH, GYM])
@pytest.mark.parametrize("repeats", [40, 40_000])
def test_a2_answer_followed_by_more_text(source: str, repeats: int) -> None:
    response = "6*9=54\n#### 54\n" + "The steps above agree with this. " * repeats
    started = time.perf_counter()
    assert score(source, response, "54") == 1
    assert score(source, response, "9") == 0
    assert time.perf_counter() - started < 1.5


def test_a2_grows_linearly() -> None:
    def seconds(repeats: int) -> float:
        texts = [
            "#### 54\n" + filler * repeats for filler in ("answer: ", r"\boxed{", "#### no ", "1,234 ", "<answer>")
        ]
        started = time.perf_counter()
        for text in texts:
            outcome(GSM8K, text, "54")
            outcome(MATH, text, "54")
        return time.perf_counter() - started

    seconds(1000)
    assert seconds(40_000) < 40 * max(seconds(4_000), 0.01)


def test_a3_boxed_answer_longer_than_the_window() -> None:
    members = [str(number) for number in range(101, 131)]
    gold = ",".join(members)
    assert len(gold) == 119
    assert score(MATH, rf"\boxed{{{gold}}}", gold) == 1
    assert score(MATH, rf"\boxed{{{', '.join(members)}}}", gold) == 1
    swapped = [members[1], members[0], *members[2:]]
    # Policy: a bare list has no order; one in brackets has one.
    assert score(MATH, rf"\boxed{{{','.join(swapped)}}}", gold) == 1
    assert score(MATH, rf"\boxed{{({','.join(swapped)})}}", f"({gold})") == 0
    assert score(MATH, rf"\boxed{{{','.join(members[:-1])}}}", gold) == 0


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        (r"\boxed{\frac{7}{12}}", r"\frac{7}{13}", 0),
        (r"\boxed{\frac{7}{12}}", r"\frac{7}{12}", 1),
        (r"\boxed{\sqrt{\frac{2}{3}}}", r"\sqrt{\frac{2}{3}}", 1),
        (r"\frac{3}{45}", r"\frac{34}{5}", 0),
        (r"\boxed{\frac{7}{12}", r"\frac{7}{12}", 0),  # policy: a box that never closes is an empty answer
        (r"\boxed{\frac{7}{12}", "12", 0),
        (r"\boxed{\frac{7}{12}", "7", 0),
        (r"\boxed{5} so \boxed{\frac{7}{12}", "5", 0),
        (r"\boxed{\left\{1, 2\right\}}", "1,2", 1),
    ],
)
def test_a4_nested_braces(response: str, gold: str, right: int) -> None:
    assert score(MATH, response, gold) == right


@pytest.mark.parametrize("source", [GSM8K, MATH, GYM, EXACT])
def test_a5_the_last_box_wins(source: str) -> None:
    response = r"I first get \boxed{18}. Rechecking, the carry was wrong, so \boxed{21}."
    assert score(source, response, "21") == 1
    assert score(source, response, "18") == 0


@pytest.mark.parametrize("source", [GSM8K, MATH, GYM])
@pytest.mark.parametrize(
    ("response", "right"),
    [
        (r"\boxed{1,2,3,4,5,6,7,8,9}", 0),
        (r"\boxed{1, 2, 3, 4, 5, 6, 7, 8, 9}", 0),
        (r"\boxed{6} or \boxed{7}", 1),  # policy: the last box only
        (r"\boxed{7} or \boxed{6}", 0),
        ("The answer is 5, 6, or 7", 0),
        ("The answer is 7 or 6", 0),
        ("#### 7 or 8", 0),
        (r"\boxed{6 \text{ or } 7}", 0),
        (r"\boxed{\{6,7\}}", 0),
        (r"\boxed{x \in \{6,7\}}", 0),
        (r"\boxed{7 \pm 0 \cup 6}", 0),
    ],
)
def test_a6_listing_candidates_for_one_number(source: str, response: str, right: int) -> None:
    assert score(source, response, "7") == right


@pytest.mark.parametrize(
    ("response", "right"),
    [
        (r"\boxed{9}", 0),
        (r"\boxed{9, 4}", 1),
        (r"\boxed{x=9, x=4}", 1),
        (r"\boxed{4, 9, 9}", 0),
        (r"\boxed{y=4, y=9}", 0),
    ],
)
def test_a6_a_subset_is_not_the_answer(response: str, right: int) -> None:
    assert score(MATH, response, "x=4 and x=9") == right


@pytest.mark.parametrize("source", [EXACT, MATH, "reasoning_gym/word_ladder"])
@pytest.mark.parametrize("response", ["<answer></answer>", r"\boxed{}", r"\boxed{ }", "", "sky", r"\boxed{sky}", " "])
def test_a8_empty_answers_and_substrings(source: str, response: str) -> None:
    assert score(source, response, "husky") == 0
    assert score(source, r"\boxed{husky}", "husky") == 1


@pytest.mark.parametrize("source", [EXACT, MATH, GSM8K, GYM])
@pytest.mark.parametrize("gold", ["", "  ", None, [], r"\text{ }", True])
def test_a8_an_empty_gold_is_a_data_error(source: str, gold: object) -> None:
    for response in ("", r"\boxed{}", "anything"):
        result = outcome(source, response, gold)
        assert isinstance(result, Failed)
        assert result.reason == "bad_ground_truth"


@pytest.mark.parametrize("source", [GSM8K, MATH, GYM])
def test_a9_gold_without_delimiters(source: str) -> None:
    assert score(source, r"\boxed{7}", "6") == 0
    assert score(source, r"\boxed{6}", "6") == 1
    assert score(source, r"\boxed{6}", 6) == 1


@pytest.mark.parametrize("source", [GSM8K, MATH])
@pytest.mark.parametrize("response", [r"\boxed{3}", r"\boxed{see figure 3}", "nothing"])
def test_a9_a_gold_that_cannot_be_parsed_pays_nobody(source: str, response: str) -> None:
    result = outcome(source, response, "see figure 3")
    assert isinstance(result, Failed)
    assert result.reason == "bad_ground_truth"
    assert "see figure 3" in result.message


def test_a9_gold_and_prediction_are_not_swapped() -> None:
    assert score(MATH, r"\boxed{5}", "x=5") == 1
    assert score(MATH, r"\boxed{x+5=5}", "5") == 0


async def test_a10_the_verifier_works_in_every_thread() -> None:
    def verdict() -> float:
        return score(MATH, r"\boxed{\frac{2}{6}}", r"\frac{1}{3}") + score(MATH, r"\boxed{\sqrt{12}}", r"2\sqrt{3}")

    assert verdict() == 2
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(verdict()))
    thread.start()
    thread.join()
    assert found == [2]
    with ThreadPoolExecutor(1) as pool:  # what a gRPC server runs its handlers in
        assert pool.submit(verdict).result() == 2
    assert await asyncio.get_running_loop().run_in_executor(None, verdict) == 2


POISON = (
    r"\boxed{\dfrac{7^{7^{7^{7^{7}}}}}{3}}",
    r"\boxed{((30!)!)!}",
    r"\boxed{10^{10^{10}}}",
    "(" * 50_000,
    "9" * 100_000,
    r"\boxed{" + "(" * 50_000 + "}",
    r"\boxed{" + "9" * 100_000 + "}",
    r"\boxed{9**9**9**9}",
    r"\boxed{(((9^9)^9)^9)^9}",
    r"\boxed{2^{99999999999}}",
    r"\boxed{10^{10!!}}",
    r"\boxed{99999999!}",
    r"\boxed{\binom{99999999}{5000000}}",
    r"\boxed{" + "{" * 50_000 + "}" * 50_000 + "}",
    r"\boxed{" + r"\frac" * 20_000 + "}",
    r"\boxed{" + "1," * 50_000 + "1}",
    r"\boxed{" + "(1," * 20_000 + "}",
    r"\boxed{5^{" + " " * 50_000 + "}}",
)


@pytest.mark.parametrize("gold", ["5", r"\sqrt{5}", "x=5"])
@pytest.mark.parametrize("response", POISON, ids=lambda text: text[:24])
def test_a11_costly_formulas_are_wrong_at_once(response: str, gold: str) -> None:
    started = time.perf_counter()
    assert score(MATH, response, gold) == 0
    if gold == "5":
        assert score(GSM8K, response, gold) == 0
    assert time.perf_counter() - started < 1.0


def test_a11_a_costly_gold_is_compared_as_text() -> None:
    assert score(MATH, r"\boxed{10^{10^{10}}}", "10^{10^{10}}") == 1
    assert score(MATH, r"\boxed{10^{10^{11}}}", "10^{10^{10}}") == 0


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        ("x+y+1=0", "5x-2y+9=0", 0),
        ("10x-4y+18=0", "5x-2y+9=0", 1),  # policy: an equation may be scaled
        ("k=1,2,3", "k=2,3,4", 0),
        ("k=2,3,4", "k=2,3,4", 1),
        ("2,3,4", "k=2,3,4", 1),
        ("D=(0,1.5)", "D=(0,1)", 0),
        ("D=(0,1)", "D=(0,1)", 1),
        ("(0,1)", "D=(0,1)", 1),
        ("E=(0,1)", "D=(0,1)", 0),
        ("5", "x=5", 1),
        ("x=5", "5", 1),
        ("y=5", "x=5", 0),
        ("x+y+1=0", "0", 0),
        ("y=2x+3", "y=2x+4", 0),
        ("y=3+2x", "y=2x+3", 1),
        ("(1,2)", "(x,y)=(1,2)", 1),
        ("x=2+3=5", "5", 1),
        (r"\angle ABC = 60^\circ", "60", 1),
        (r"AB = \sqrt{12}", r"2\sqrt{3}", 1),
        (r"x+y=\sqrt{12}", r"2\sqrt{3}", 0),
    ],
)
def test_a13_equations(response: str, gold: str, right: int) -> None:
    assert score(MATH, rf"\boxed{{{response}}}", gold) == right
    assert score(MATH, f"The answer is ${response}$.", gold) == right


@pytest.mark.parametrize("source", [GSM8K, MATH, GYM])
@pytest.mark.parametrize(
    "response",
    [
        "... 5 + 53 = 58.\n\nFinal answer: **58**",
        "Answer: 58.",
        "Answer: $58$",
        r"**Answer:** \(58\)",
        "#### 58 apples",
        "The answer is 58%",  # policy: a percent sign may be a unit
        "**Answer: 58**",
        "Answer: 5 + 53 = 58",
        "The answer is 58, because 5 + 53 = 58.",
        "### Final Answer:\n58",
        "#### Step 2: add\n5 + 53 = 58\nSo the answer is 58!",
        "Adding 5 and 53 gives 58.",
        "<think>maybe 57? The answer is 57</think>58",
        "Answer: 57. No, wait.\nAnswer: *58*",
        "<answer>58",
    ],
)
def test_a15_markdown_full_stops_and_answer_lines(source: str, response: str) -> None:
    assert score(source, response, "58") == 1
    assert score(source, response, "53") == 0
    assert score(source, response, "57") == 0


def test_a15_extraction_failures_are_visible() -> None:
    result = outcome(GSM8K, "I can't tell.", "58")
    assert isinstance(result, Scored)
    assert (result.score, result.parts["extracted"], result.parts["format"]) == (0.0, 0.0, 0.0)
    found = outcome(GSM8K, "It is 58", "58")
    assert isinstance(found, Scored)
    assert (found.parts["extracted"], found.parts["format"], found.parts["pred"]) == (1.0, 0.0, "58")


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        (r"\frac{4}{7}", "4/7", 1),
        ("4", "4/7", 0),
        (r"\tfrac47", "4/7", 1),
        ("0.5714", "4/7", 0),  # policy: a rounded decimal is not exact
        ("4/7", r"\frac47", 1),
        ("12.5", r"12.5\%", 1),  # policy: a percent sign is a unit and a hundredth
        ("0.125", r"12.5\%", 1),
        ("1250", r"12.5\%", 0),
        (r"12.5\%", r"12.5\%", 1),
        (r"1250\%", r"12.5\%", 0),
        (r"30\text{ cm}", "30", 1),
        (r"30\text{ cm}^2", "30", 1),
        ("30 cm", "30", 1),
        ("30 apples", "30", 1),
        ("30 percent", r"30\%", 1),
        ("30x", "30", 0),
        ("1.5", r"1\frac12", 1),
        (r"1\frac{1}{2}", "1.5", 1),
        ("1 1/2", "1.5", 1),
        (r"\frac{1}{2}", r"\frac12", 1),
        (r"\frac12", r"\frac{1}{2}", 1),
        (r"\frac{-4}{7}", "4/7", 0),
        (r"-\frac{4}{7}", "-4/7", 1),
        (r"90^\circ", "90", 1),
        ("1/0", "4/7", 0),
        (r"\sqrt{5}", "5", 0),
        (r"3\pi", "3", 0),
        (r"\sqrt{25}", "5", 1),
    ],
)
def test_a16_fractions_percent_units(response: str, gold: str, right: int) -> None:
    assert score(MATH, rf"\boxed{{{response}}}", gold) == right


@pytest.mark.parametrize(
    ("response", "right"),
    [
        (r"\boxed{\text{C}}", 1),
        (r"\boxed{C: 14 m}", 1),
        (r"\boxed{C} ... \boxed{D}", 0),
        (r"\boxed{(C)}", 1),
        (r"\boxed{\textbf{(C)}\ 14}", 1),
        (r"\boxed{CD}", 0),
        ("The answer is (C).", 1),
        ("C", 1),
    ],
)
def test_a18_choice_letters(response: str, right: int) -> None:
    assert score(MATH, response, "C") == right


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        (r"\text{Evelyn}", r"\text{Evelyn}", 1),
        ("Evelyn", r"\text{Evelyn}", 1),
        ("Evelyn and Bob", r"\text{Evelyn}", 0),
        (r"(-\infty,2)\cup(3,\infty)", r"(-\infty, 2) \cup (3, \infty)", 1),
        (r"(-\infty,2]\cup(3,\infty)", r"(-\infty, 2) \cup (3, \infty)", 0),
        (r"[0,1)", r"(0,1)", 0),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", 1),
        (r"\begin{pmatrix} 1 \\ 3 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", 0),
        (r"1+\sqrt{19}, 1-\sqrt{19}", r"1 \pm \sqrt{19}", 1),
        (r"(x+1)^2", "x^2+2x+1", 1),
        (r"x^2+1", "x^2+2x+1", 0),
        (r"10x^{12}+x^{11}-3x^{10}+2x^2-x+10x^0", "10x^{12}+x^{11}-3x^{10}+2x^2-x+10", 1),
        (r"\dfrac{9+\sqrt{3}}{2}", r"\frac{9 + \sqrt3}{2}", 1),
        ("1.414214", r"\sqrt{2}", 0),
        (r"p^2 - q", r"p^2-q", 1),
        (r"0.5", r"\frac{\sqrt{4}}{4}", 1),
        ("3-2i", "3 - 2i", 1),
        ("3+2i", "3 - 2i", 0),
        (r"\left(3, \frac{\pi}{2}\right)", r"\left( 3, \frac{\pi}{2} \right)", 1),
        (r"\left(3, \frac{\pi}{3}\right)", r"\left( 3, \frac{\pi}{2} \right)", 0),
        ("x < 3", "3 > x", 1),
        ("17_{8}", "17_8", 1),  # policy: a number in another base, a ratio and a time are compared by spelling
        ("17", "17_8", 0),
        ("17_9", "17_8", 0),
        ("5", "101_2", 0),
        ("3 : 4", "3:4", 1),
        ("3/4", "3:4", 0),
        ("4:15", "8:30", 0),
        (r"2\text{ hours and }3\text{ minutes}", r"2 \text{ hours and } 3 \text{ minutes}", 1),
    ],
)
def test_math_answers_of_many_kinds(response: str, gold: str, right: int) -> None:
    assert score(MATH, rf"Thus \boxed{{{response}}}.", gold) == right


def test_unknown_sources_have_no_verifier() -> None:
    assert find_verifier("openai/gsm9k") is None
    assert find_verifier("reasoning_gym") is None
    assert find_verifier(GYM) is not None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10-4=6", "6"),
        ("that makes 10-4", "4"),
        ("it is -4", "-4"),
        ("1e5", "1e5"),
        ("3,480 or 12%", "12%"),
        ("nothing", ""),
        (r"\frac{3}{45}", r"\frac{3}{45}"),
    ],
)
def test_the_last_number_of_a_text(text: str, found: str) -> None:
    assert last_number(text) == found
