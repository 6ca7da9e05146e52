"""The Python tool: programs run in the sandbox, and what is wrong with one is told to the model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from argosy.controller.agents.loops.tool_agent import ToolAgent
from argosy.controller.agents.template import TurnTemplate
from argosy.controller.agents.tools.python import PythonTool
from argosy.sandbox.options import SandboxOptions, SandboxUnavailableError
from argosy.sandbox.runner import Sandbox
from unit.controller.agents.scripted import Policy, lead, prompt_of, setting_of


@pytest.fixture(scope="module")
def tool() -> Iterator[PythonTool]:
    isolation = "required"
    try:
        with Sandbox(SandboxOptions()) as sandbox:
            sandbox.start()
    except SandboxUnavailableError:
        isolation = "allowed_without"  # limits and the system call filter hold all the same
    assert PythonTool.schema is not None
    made = PythonTool({"time_limit_s": 1, "memory_mb": 256, "isolation": isolation}, PythonTool.schema)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print(6 * 7)", "42"),
        ("print('a'); 1 / 0", "ZeroDivisionError"),
        ("while True: pass", "error: the program ran longer than 1 s"),
        ("print('x' * 3_000_000)", "error: the program printed more than 1 MiB"),
        ("def (", "SyntaxError"),
        ("import socket; socket.create_connection(('127.0.0.1', 80), 1)", "Error"),
        ("import sys; sys.exit(3)", "exit status 3"),
    ],
)
def test_what_a_program_gives_back(tool: PythonTool, code: str, said: str) -> None:
    response = tool.execute("id", {"code": code})
    assert said in response.text
    assert response.failed == (said != "42")


async def test_a_model_runs_programs_and_reads_their_output(tool: PythonTool, template: TurnTemplate) -> None:
    loop = ToolAgent(setting_of(template, [tool], format="pythonic"))
    samples = [
        lead(loop, Policy(template, f'[python(code="print({k} + 1)")]', "Done."), prompt_of(template, [tool]))
        for k in range(3)
    ]
    for k, done in enumerate(await asyncio.gather(*samples)):
        assert [message["content"] for message in done.messages if message["role"] == "tool"] == [f"{k + 1}\n"]
        assert done.metrics == {"tool_calls": 1, "malformed_calls": 0, "tool_failures": 0}


def test_a_closed_tool_leaves_no_sandbox_behind(tool: PythonTool) -> None:
    assert PythonTool.schema is not None
    own = PythonTool({"isolation": tool.config["isolation"]}, PythonTool.schema)
    assert own.execute("id", {"code": "print(1)"}).text == "1\n"
    [sandbox] = own._idle
    own.close()
    assert sandbox._keeper is None
