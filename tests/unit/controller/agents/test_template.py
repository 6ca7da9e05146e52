"""What a chat template writes after a sampled turn, for templates of the kinds that there are (case C3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from argosy.controller.agents.template import TurnTemplate
from argosy.modeling.tiny import save_byte_tokenizer
from argosy.text.tokenizer import TextTokenizer, load_tokenizer
from argosy.types.errors import InvalidInputError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GROUPED = (  # what tools say is a user's turn, several of them one turn; calls are written in the assistant's
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n' }}<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '\n' }}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ONE_CALL = "{% for m in messages %}{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one') }}{% endif %}"
STRIPS = (  # reasoning is left out of turns that a user's message follows
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' and loop.index0 < ns.last else m.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REWRITES = (
    "{% for m in messages %}[{{ m.role }}{{ messages | length }}]{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TOOL: list[dict[str, Any]] = [{"role": "tool", "content": "4", "name": "calc", "tool_call_id": "call00000"}]
USER: list[dict[str, Any]] = [{"role": "user", "content": "Sure?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    save_byte_tokenizer(path)
    return path


def of(folder: Path, template: str, **kwargs: Any) -> TurnTemplate:
    return TurnTemplate(load_tokenizer(folder, chat_template=template), kwargs)


def text(template: TurnTemplate, messages: list[dict[str, Any]], *, closed: bool) -> str:
    ids = template.following(messages, closed=closed)
    return template.tokenizer.decode(ids, skip_special_tokens=False)


def test_the_end_of_the_turn_is_written_only_where_it_was_not_sampled(folder: Path) -> None:
    template = of(folder, CHATML)
    after = "\n<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n"
    assert text(template, TOOL, closed=True) == after
    assert text(template, TOOL, closed=False) == "<|im_end|>" + after
    assert template.check(TOOL) == []


@pytest.mark.parametrize("source", [CHATML, GROUPED])
def test_turns_put_together_are_what_the_template_writes_of_the_whole(folder: Path, source: str) -> None:
    """Where the tokens of a turn happen to be those that its text encodes to, nothing is added or missing."""
    template = of(folder, source)
    tokenizer: TextTokenizer = template.tokenizer
    question = [{"role": "user", "content": "2+2?"}]
    call = {"role": "assistant", "content": "look: "}
    sampled = tokenizer.encode_rendered("look: <|im_end|>")
    whole = tokenizer.encode_prompt([*question, call, *TOOL])
    assert tokenizer.encode_prompt(question) + sampled + template.following(TOOL, closed=True) == whole


def test_several_results_are_one_turn_where_the_template_has_it_so(folder: Path) -> None:
    both = [*TOOL, {**TOOL[0], "content": "5", "tool_call_id": "call00001"}]
    expected = (
        "\n<|im_start|>user\n<tool_response>\n4\n</tool_response>\n<tool_response>\n5\n</tool_response><|im_end|>\n"
    )
    assert text(of(folder, GROUPED), both, closed=True) == expected + "<|im_start|>assistant\n"


def test_a_template_that_refuses_two_calls_a_turn_still_takes_two_results(folder: Path) -> None:
    strict = of(folder, ONE_CALL + CHATML.removeprefix("{% for m in messages %}"))
    assert text(strict, [*TOOL, *TOOL], closed=True).count("<|im_start|>tool\n4") == 2


def test_the_variables_of_the_template_hold_in_later_turns_too(folder: Path) -> None:
    source = CHATML.replace("{% endif %}", "{% if not thinking %}<think></think>{% endif %}{% endif %}")
    template = of(folder, source, thinking=False)
    assert text(template, USER, closed=True).endswith("assistant\n<think></think>")


def test_a_template_that_drops_reasoning_is_noticed_where_it_does(folder: Path) -> None:
    template = of(folder, STRIPS)
    assert not template.rewrites(TOOL)
    assert template.rewrites(USER)
    assert "reasoning" in template.check(USER)[0]
    assert text(template, USER, closed=True) == "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_writes_a_turn_otherwise_once_something_follows_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidInputError, match="writes a turn otherwise once a tool message follows"):
        of(folder, REWRITES).following(TOOL, closed=True)


def test_a_template_without_what_the_assistant_said_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidInputError, match="does not write what the assistant said"):
        of(folder, "{{ messages[0].content }}").following(TOOL, closed=True)


def test_whether_tools_come_into_the_prompt(folder: Path) -> None:
    tools = [{"type": "function", "function": {"name": "calc", "parameters": {}}}]
    assert not of(folder, CHATML).writes_tools(tools)
    assert of(folder, "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML).writes_tools(tools)
