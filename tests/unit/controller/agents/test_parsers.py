"""How models write calls; what can't be read is a problem in words, never an exception."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.controller.agents.instructions import instructions
from argosy.controller.agents.parsers import PARSERS, parser
from argosy.controller.agents.parsers.base import MAX_CALLS
from argosy.types.errors import ConfigError

ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "note": {"type": "string"}, "of": {"type": "array"}},
        },
    },
}
WRITTEN = {
    "hermes": 'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "note": "2"}}\n</tool_call>',
    "qwen": '<tool_call>{"name": "add", "arguments": {"a": 1, "note": "2"}}</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=note>\n2\n</parameter>\n"
    "</function>\n</tool_call>",
    "llama3_json": '<|python_tag|>{"name": "add", "parameters": {"a": 1, "note": "2"}}<|eom_id|>',
    "pythonic": '[add(a=1, note="2")]<|eot|>',
    "json": '```json\n{"name": "add", "arguments": {"a": 1, "note": "2"}}\n```',
}


@pytest.mark.parametrize("form", PARSERS)
def test_a_call_in_each_format(form: str) -> None:
    parsed = parser(form).parse(WRITTEN[form], [ADD])
    assert [(call.name, dict(call.arguments)) for call in parsed.calls] == [("add", {"a": 1, "note": "2"})]
    assert not parsed.problems
    assert parsed.content == ("Let me see." if form == "hermes" else "")


@pytest.mark.parametrize(
    ("form", "text", "names"),
    [
        ("hermes", '<tool_call>{"name": "a"}</tool_call> and <tool_call>{"name": "b"}</tool_call>', ["a", "b"]),
        ("hermes", '<tool_call>{"type": "function", "function": {"name": "a", "arguments": "{}"}}</tool_call>', ["a"]),
        ("qwen3_coder", '<tool_call>{"name": "a", "arguments": {}}</tool_call>', ["a"]),
        ("qwen3_coder", "<tool_call><function=a><parameter=x>1</function></tool_call>", ["a"]),
        ("llama3_json", '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}', ["a", "b"]),
        ("llama3_json", '{"name": "a", "parameters": {}} I hope this helps.', ["a"]),
        ("pythonic", "[a(x=[1, {'y': None}]), b()]", ["a", "b"]),
        ("json", '[{"name": "a"}, {"name": "b"}]', ["a", "b"]),
    ],
)
def test_several_calls_and_loose_forms(form: str, text: str, names: list[str]) -> None:
    parsed = parser(form).parse(text, [])
    assert ([call.name for call in parsed.calls], parsed.problems) == (names, ())


@pytest.mark.parametrize("form", PARSERS)
@pytest.mark.parametrize("text", ["", "The answer is 4.", "{curly} talk", "[1, 2, 3]", "a < b"])
def test_plain_answers_are_answers(form: str, text: str) -> None:
    parsed = parser(form).parse(text, [ADD])
    if form in ("json", "llama3_json") and text == "{curly} talk":
        assert parsed.is_answer or parsed.problems  # it may have been meant as a call
    else:
        assert parsed.is_answer
        assert parsed.content == text


@pytest.mark.parametrize(
    ("form", "text", "problem"),
    [
        ("hermes", '<tool_call>{"name": "add", "argum', "not closed"),
        ("hermes", "<tool_call>add(1)</tool_call>", "no valid JSON"),
        ("hermes", "<tool_call>[1]</tool_call>", "no JSON object"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "no 'name'"),
        ("hermes", '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "arguments of add are no JSON object"),
        ("hermes", '<tool_call>{"name": "add", "arguments": "{"}</tool_call>', "arguments of add are no valid JSON"),
        ("qwen3_coder", "<tool_call>add</tool_call>", "no <function=NAME>"),
        ("llama3_json", '<|python_tag|>{"name": ', "no valid JSON"),
        ("llama3_json", '{"name": "add", "parameters": ', "no valid JSON"),
        ("pythonic", "[add(1)]", "must be given by name"),
        ("pythonic", "[add(a=__import__('os'))]", "no literal value"),
        ("pythonic", "[add(a=1", "no valid Python"),
        ("json", '{"name": 5}', "no 'name'"),
    ],
)
def test_malformed_calls_are_told(form: str, text: str, problem: str) -> None:
    parsed = parser(form).parse(text, [ADD])
    assert not parsed.calls
    assert problem in parsed.problems[0]


def test_a_thousand_calls_and_a_long_one_are_bounded() -> None:
    many = parser("hermes").parse('<tool_call>{"name": "a"}</tool_call>' * 1000, [])
    assert len(many.calls) == MAX_CALLS
    assert "1000 calls" in many.problems[0]
    for form in PARSERS:
        long = WRITTEN[form].replace("2", "2" * 200_000)
        assert "characters" in parser(form).parse(long, [ADD]).problems[0]


def test_a_schema_says_what_an_xml_value_is() -> None:
    text = "<tool_call><function=add><parameter=note>12</parameter><parameter=of>[1]</parameter></function></tool_call>"
    assert parser("qwen3_coder").parse(text, [ADD]).calls[0].arguments == {"note": "12", "of": [1]}


@pytest.mark.parametrize("form", PARSERS)
@given(
    st.lists(
        st.sampled_from(
            [
                *'{}[]()":,=;<>\\n ',
                *("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "<|python_tag|>"),
                *("```json\n", "```", '"name"', '"arguments"', "add(", "null", "a", "1", "-" * 300, "[" * 300),
            ]
        ),
        max_size=30,
    ).map("".join)
    | st.text(max_size=60)
)
def test_nothing_that_a_model_writes_raises(form: str, text: str) -> None:
    parsed = parser(form).parse(text, [ADD])
    assert all(isinstance(problem, str) for problem in parsed.problems)
    assert all(isinstance(call.name, str) and isinstance(call.arguments, dict) for call in parsed.calls)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"got 'xml', wants one of hermes, qwen, qwen3_coder"):
        parser("xml")


@pytest.mark.parametrize("form", PARSERS)
def test_the_example_that_models_are_shown_is_a_call_in_the_format(form: str) -> None:
    """With values in place of the dots, the parser reads it."""
    shown = instructions([ADD], form).split("for example ")[1].removesuffix(" and wait for its result.")
    written = shown.replace("…", "1")
    parsed = parser(form).parse(written, [ADD])
    assert [(call.name, set(call.arguments)) for call in parsed.calls] == [("add", {"a", "note", "of"})]
