"""How models write calls; what can't be read is a problem in words, never an exception."""

from __future__ import annotations

import json
import time
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
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', "nan is no JSON number"),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": [1e999]}}</tool_call>', "inf is no JSON number"),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>', "half a surrogate pair"),
        ("hermes", '<tool_call>{"name": "\\ud800"}</tool_call>', "half a surrogate pair"),
        (
            "qwen3_coder",
            "<tool_call><function=add><parameter=note>\ud800</function></tool_call>",
            "half a surrogate pair",
        ),
        ("llama3_json", '{"name": "add", "parameters": {"\\udfff": 1}}', "a key that is no text"),
        ("json", '{"name": "add", "arguments": {"a": %s}}' % ("[" * 100 + "]" * 100), "nested more than"),
        ("pythonic", "[add(a={1, 2})]", "a set is no JSON value"),
        ("pythonic", "[add(a=b'x')]", "a bytes is no JSON value"),
        ("pythonic", "[add(a=...)]", "a ellipsis is no JSON value"),
        ("pythonic", "[add(a=1j)]", "a complex is no JSON value"),
        ("pythonic", "[add(a={(1, 2): 3})]", "a key that is no text"),
        ("pythonic", "[add(a=1e999)]", "inf is no JSON number"),
        ("pythonic", "[add(a=0x%s)]" % ("f" * 5000), "an integer is too large"),
        ("pythonic", "[add()()]", "no call"),
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


_BLANKS, _MANY = " " * 60_000, 20_000


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("qwen3_coder", f"<tool_call><function=f><parameter=a>{_BLANKS}x</tool_call>"),
        ("qwen3_coder", f"<tool_call><function=f>{_BLANKS}x</tool_call>"),
        ("qwen3_coder", f"<tool_call><function=f{_BLANKS}x</tool_call>"),
        ("qwen3_coder", f"<tool_call><function=f><parameter=a{_BLANKS}x</tool_call>"),
        ("qwen3_coder", f"<tool_call><function=f>{'<parameter=a>' * (_MANY // 4)}</tool_call>"),
        ("qwen3_coder", f"<tool_call>{_BLANKS}x</tool_call>"),
        ("hermes", "<tool_call>" * _MANY),
        ("json", "```" + "\n" * 60_000 + "x"),
        ("json", "```\n" * _MANY),
        ("json", "`" * 60_000),
        ("pythonic", f"[f{_BLANKS}x"),
        ("pythonic", "[" + "a." * 600 + "f(x=1)]"),
        ("pythonic", "[f(" + "({[" * 1000),
    ],
)
def test_what_a_collapsing_policy_writes_is_read_at_once(form: str, text: str) -> None:
    """It is read on the event loop: seconds here are seconds without leases and streams. The bound is a guard."""
    began = time.process_time()
    parser(form).parse(text, [ADD])
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("inner", "arguments"),
    [
        ("<parameter=a>\n1\n</parameter>\n<parameter=note>\n two \n\n</parameter>", {"a": 1, "note": " two \n"}),
        ("<parameter=a>1\n <parameter=note>x  ", {"a": 1, "note": "x"}),
        ("<parameter=note>a <b> c</parameter>", {"note": "a <b> c"}),
        ("<parameter=note>x<parameter=a>2</parameter>", {"note": "x", "a": 2}),
        ("<parameter=a>1</parameter><parameter=a>2</parameter>", {"a": 2}),
        ("<parameter=a>NaN</parameter>", {"a": "NaN"}),
        ("<parameter>1</parameter>", {}),
    ],
)
def test_parameters_with_and_without_closing_tags(inner: str, arguments: dict[str, Any]) -> None:
    parsed = parser("qwen3_coder").parse(f"<tool_call>\n<function=add>\n{inner}\n</function>\n</tool_call>", [ADD])
    assert [call.arguments for call in parsed.calls] == [arguments]


def test_a_python_name_with_dots_and_a_tuple_are_plain() -> None:
    (call,) = parser("pythonic").parse("[math.add(a=(1, -2))]", []).calls
    assert (call.name, call.arguments) == ("math.add", {"a": [1, -2]})


def test_the_first_json_block_counts() -> None:
    text = 'So:\n```python\nprint()\n```\nand\n```json\n{"name": "a"}\n```\n'
    assert [call.name for call in parser("json").parse(text, []).calls] == ["a"]


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
                *(
                    "```json\n",
                    "```",
                    '"name"',
                    '"arguments"',
                    "add(",
                    "null",
                    "a",
                    "1",
                    "-" * 300,
                    "[" * 300,
                    "NaN",
                    "\\ud800",
                ),
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
    for call in parsed.calls:
        json.dumps(call.openai(), allow_nan=False, ensure_ascii=False).encode()


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
