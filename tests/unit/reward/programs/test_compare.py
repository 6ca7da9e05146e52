"""What counts as the expected output, and which rows can be read."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import pytest

from argosy.reward.programs.compare import same_output, same_value
from argosy.reward.programs.tests import read_tests
from argosy.reward.verifiers.code import CodeVerifier
from argosy.sandbox import plain
from argosy.types.records import Failed


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        ("3\n", "3", True),
        (" 3 \n\n", "3\n", True),
        ("1 2\n3", "1\n2\n3\n", True),
        ("1 2", "1 2 3", False),
        ("1 2 3", "1 2", False),
        ("", "", True),
        ("", "0", False),
        ("YES", "yes", False),
        ("03", "3", False),
        ("3", "03", False),
        ("101", "0101", False),
        ("0101", "0101", True),
        ("00.5", "0.5", False),
        (".5", "0.5", True),
        ("0", "-0", True),
        ("+3", "3", True),
        ("3.0", "3", False),
        ("3", "3.0", True),
        ("0.3333333", "0.33333333333", True),
        ("0.3334", "0.3333333", False),
        ("1e6", "1000000.0", True),
        ("1000000000000000000001", "1000000000000000000000", False),
        ("1000001.0", "1000000.0", True),
        ("1000002.0", "1000000.0", False),
        ("nan", "nan", True),
        ("nan", "0.5", False),
        ("inf", "1e400", False),
        ("9" * 5000, "9" * 5000, True),
        ("9" * 5000, "8" * 5000, False),
        ("٣", "3", False),
    ],
)
def test_outputs(actual: str, expected: str, same: bool) -> None:
    assert same_output(actual, expected) is same


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        ((1, (2, 3)), [1, [2, 3]], True),
        ([1, 2], [2, 1], False),
        ({3, 1, 2}, [1, 2, 3], False),
        ({3, 1}, [1, 2, 3], False),
        ([{1, 2}], [[1, 2]], False),
        ({3}, [3], False),
        (set(), [], False),
        ({3, 1, 2}, {1, 2, 3}, True),
        ({3, 1}, {1, 2, 3}, False),
        ([1, 2], {1, 2}, False),
        ({"b", (1, 2.0), None}, {None, "b", (1, 2)}, True),
        ({frozenset({1, 2}), 3.0000001}, {3.0, frozenset({2, 1})}, True),
        ({frozenset({1, 2}), 4}, {frozenset({2, 3}), 4}, False),
        ({(1, 2): 3}, {"a": 3}, False),
        (range(1, 4), [1, 2, 3], True),
        (True, 1, True),
        (1, True, True),
        (0, None, False),
        (None, None, True),
        ("1", 1, False),
        (1, "1", False),
        (3.0, 3, True),
        (3, 3.0, True),
        (3.0000001, 3.0, True),
        (3.0000001, 3, False),
        (3.1, 3.0, False),
        (float("nan"), 0.0, False),
        (10**400, 1.0, False),
        (2**70 + 1, 2**70, False),
        ({1: "a"}, {"1": "a"}, True),
        ({True: "a"}, {"true": "a"}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({}, [], False),
        ([], None, False),
        (deque([1, 2]), [1, 2], True),
        (Counter("aab"), {"a": 2, "b": 1}, True),
        (defaultdict(list, a=[1]), {"a": [1]}, True),
        (OrderedDict(a=1), {"a": 1}, True),
        ("\ud800x", "\ud800x", True),
    ],
)
def test_values(actual: Any, expected: Any, same: bool) -> None:
    assert same_value(plain.decode(plain.encode(actual)), expected) is same


def test_g7_a_forged_set_with_a_member_twice() -> None:
    """No set has one, so it is no set of the same size."""
    for forged in (b"(i1;i1;)", b"(i1;t)", b"(i1;d0x1.0p+0;)"):
        assert not same_value(plain.decode(forged), {1, 2})
        assert not same_value(plain.decode(forged), [1, 1])


def test_forms_of_tests() -> None:
    """verl's, as a mapping and as JSON; lines in a list; apps' wrapped values; livecodebench's JSON lines."""
    row: dict[str, Any] = {"inputs": ["1\n", ["1", "2"]], "outputs": ["2", ["3", "4"]]}
    for tests in (read_tests(row), read_tests(json.dumps(row)), read_tests(row | {"fn_name": None})):
        assert [(test.stdin, test.stdout) for test in tests.programs] == [("1\n", "2"), ("1\n2", "3\n4")]
    tests = read_tests({"fn_name": "f", "inputs": ["1\n[2]", '1\n"a"'], "outputs": ["[5]", "[5]"]})
    assert [(plain.decode(test.arguments), test.accepted) for test in tests.calls] == [
        ([1, [2]], ([5],)),
        ([1, "a"], ([5],)),
    ]


def test_a_value_alone_in_a_list_is_the_format_of_a_row_and_not_of_a_test() -> None:
    """apps has it in every test; where one has another length, a list of one is a list of one."""
    row: dict[str, Any] = {"fn_name": "f", "inputs": [[1], [2]]}
    assert [test.accepted for test in read_tests(row | {"outputs": [[5], [[6]]]}).calls] == [([5], 5), ([[6]], [6])]
    assert [test.accepted for test in read_tests(row | {"outputs": [[5], [6, 7]]}).calls] == [([5],), ([6, 7],)]
    assert [test.accepted for test in read_tests(row | {"outputs": [[5], 6]}).calls] == [([5],), (6,)]


def test_a_flood_of_tokens_takes_no_memory() -> None:
    """Case G4: many right tokens, and then one too many. A list of them would be 60 bytes each."""
    flood = "10 " * 200_000
    tracemalloc.start()
    try:
        assert not same_output(flood + "1", flood)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "ground_truth",
    [
        "", "{", "[]", "3", None, 3, [], {}, {"inputs": [], "outputs": []}, {"inputs": ["1"], "outputs": []},
        {"inputs": "1", "outputs": "1"}, {"inputs": [1], "outputs": ["1"]}, {"inputs": ["1"], "outputs": [None]},
        {"inputs": [3], "outputs": [3], "fn_name": "f"}, {"inputs": ["{"], "outputs": ["3"], "fn_name": "f"},
        {"inputs": ["3"], "outputs": ["{"], "fn_name": "f"}, {"inputs": [[1]], "outputs": [1], "fn_name": "a b"},
        {"inputs": [[1]], "outputs": [1], "fn_name": 3}, {"inputs": ["1", "2"], "outputs": ["", " \n"]},
        {"inputs": [[1], [2]], "outputs": [None, None], "fn_name": "f"},
        {"inputs": [[1], [2]], "outputs": [[None], [None]], "fn_name": "f"},
        {"inputs": ["1", "2"], "outputs": ["null", "null"], "fn_name": "f"},
    ],
)  # fmt: skip
def test_rows_that_can_not_be_read_are_at_fault(ground_truth: Any) -> None:
    outcome = CodeVerifier().verify("```python\nprint(1)\n```", ground_truth, {})
    assert isinstance(outcome, Failed), outcome
    assert outcome.reason == "bad_ground_truth"
