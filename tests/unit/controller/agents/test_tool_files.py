"""Tool files, their classes and schemas: what is wrong is said with the file and the place in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from argosy.controller.agents.episode import Episode
from argosy.controller.agents.loops.base import AgentLoop
from argosy.controller.agents.plan import read_loops
from argosy.controller.agents.template import TurnTemplate
from argosy.controller.agents.tools.load import read_tools
from argosy.controller.agents.tools.schema import argument_problem, schema_problem
from argosy.types.errors import ConfigError
from unit.controller.agents.scripted import Policy, call, lead, prompt_of, setting_of

EXAMPLES = Path(__file__).parents[4] / "examples" / "tools"
CALCULATOR = "argosy.controller.agents.tools.calculator.Calculator"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "wants a list `tools:`"),
        ("tools: []", "wants a list `tools:`"),
        ("tools: [5]", r"tools\[0\]: wants class_name, config and tool_schema, got 5"),
        ("tools: [{}]", r"tools\[0\].class_name: wants the name of a class"),
        ("tools: [{class_name: Calculator}]", "wants package.module.Class or file.py:Class"),
        ("tools: [{class_name: no.such.Module}]", "no.such can't be imported: ModuleNotFoundError"),
        ("tools: [{class_name: 'nothing.py:Tool'}]", "there is no file .*nothing.py"),
        ("tools: [{class_name: argosy.controller.agents.tools.Calculater}]", "has no class Calculater"),
        ("tools: [{class_name: pathlib.Path}]", "must extend argosy.controller.agents.tools.base.BaseTool"),
        ("tools: [{class_name: 'broken.py:Tool'}]", "broken.py can't be imported: ZeroDivisionError"),
        ("tools: [{class_name: 'bare.py:Tool'}]", "has no tool_schema, and BaseTool brings none"),
        ("tools: [{class_name: 'bare.py:Tool', tool_schema: {name: x}}]", 'is not of the form {"type": "function"'),
        (f"tools: [{{class_name: {CALCULATOR}}}, {{class_name: {CALCULATOR}}}]", "two tools are called 'calculator'"),
        (f"tools: [{{class_name: {CALCULATOR}, confg: {{}}}}]", "there is no key 'confg'"),
        (f"tools: [{{class_name: {CALCULATOR}, config: {{type: mcp}}}}]", "got 'mcp'; only native tools"),
        (
            f"tools: [{{class_name: {CALCULATOR}, config: {{timeout_s: 0}}}}]",
            "timeout_s: wants a number above 0, got 0",
        ),
    ],
)
def test_what_is_wrong_with_a_tool_file(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "bare.py").write_text("from argosy.controller.agents.tools import BaseTool as Tool")
    (tmp_path / "tools.yaml").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_tools(tmp_path / "tools.yaml")


def test_a_tool_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text(
        "tools: [{class_name: argosy.controller.agents.tools.python.PythonTool, config: {memory_mb: -1}}]"
    )
    with pytest.raises(ConfigError, match="the tool python can't be made: ValueError: memory_bytes must be positive"):
        read_tools(tmp_path / "tools.yaml")["python"].build()


@pytest.mark.parametrize("name", ["calculator", "python", "own_tool"])
def test_the_examples_can_be_read(name: str) -> None:
    for spec in read_tools(EXAMPLES / f"{name}.yaml").values():
        tool = spec.build()
        assert schema_problem(tool.tool_schema) is None
        tool.close()


async def test_the_example_tool_and_the_example_loop_work(template: TurnTemplate) -> None:
    tool = read_tools(EXAMPLES / "own_tool.yaml")["convert"].build()
    answer = await tool.execute("id", {"value": 2, "source": "km", "target": "m"})
    assert answer.text == "2000"
    spec = read_loops(EXAMPLES / "own_loop.yaml")["ask_again"]
    loop: AgentLoop = spec.kind(setting_of(template), **spec.options)
    done = await lead(loop, Policy(template, "4", "4"), prompt_of(template))
    assert (done.turn_count, done.turn_rewards) == (2, ((len(done.token_ids) - 1, 0.2),))


def test_what_is_wrong_with_a_file_of_loops(tmp_path: Path) -> None:
    file = tmp_path / "loops.yaml"
    for text, problem in [
        ("name: x", "wants a list at the top"),
        ("- {class_name: a.B}", "wants name and class_name"),
        ("- {name: tool_agent, class_name: argosy.controller.agents.loops.base.AgentLoop}", "already"),
        ("- {name: x, class_name: pathlib.Path}", r"must extend argosy\.controller\.agents\.loops\.base\.AgentLoop"),
    ]:
        file.write_text(text)
        with pytest.raises(ConfigError, match=problem):
            read_loops(file)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"a": 1}, None),
        ({"a": 1.0}, None),
        ({"a": 1, "b": ["x"]}, None),
        ({"a": 1, "c": None}, None),
        ({}, "argument 'a' is missing"),
        ({"a": "1"}, "must be of type integer, got '1'"),
        ({"a": True}, "must be of type integer, got True"),
        ({"a": 1, "d": "z"}, "must be one of 'x', 'y', got 'z'"),
        ({"a": 1, "e": 1}, "there is no argument 'e'; the arguments are a, b, c, d"),
    ],
)
def test_arguments_against_a_schema(arguments: dict[str, Any], problem: str | None) -> None:
    properties = {
        "a": {"type": "integer"}, "b": {"type": "array"}, "c": {"type": ["string", "null"]}, "d": {"enum": ["x", "y"]},
    }  # fmt: skip
    found = argument_problem(arguments, {"function": {"parameters": {"properties": properties, "required": ["a"]}}})
    assert found == problem or (problem is not None and found is not None and problem in found)


async def test_a_loop_that_speaks_first_is_told_where_that_belongs(template: TurnTemplate) -> None:
    class First(AgentLoop):
        async def run(self, episode: Episode) -> None:
            await episode.say([{"role": "user", "content": call("a")}])

    with pytest.raises(Exception, match="belongs into the data's prompt"):
        await lead(First(setting_of(template)), Policy(template), prompt_of(template))
