"""Asks each interpreter, before anything is started, whether it can run the services that are meant for it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from argosy.controller.launch.plan import PlannedMember, module_of
from argosy.types.errors import ConfigError

ENGINE_PACKAGES: Mapping[str, str] = {"hf": "transformers", "vllm": "vllm", "sglang": "sglang"}
"""Engine → the package that it can't do without; one that isn't listed needs none."""

_IN_ENGINES_VENV = frozenset({"vllm", "sglang"})
PROBE_TIMEOUT_S = 120.0
"""A first start from a cold disk takes tens of seconds."""

_PROBE = """
import importlib, importlib.util, sys
if sys.version_info < (3, 11):
    sys.exit("is Python %d.%d, 3.11 or newer is needed" % sys.version_info[:2])
package, *modules = sys.argv[1:]
for module in modules:
    try:
        importlib.import_module(module)
    except ImportError as error:
        sys.exit("can't import %s: %s" % (module, error))
if package and importlib.util.find_spec(package) is None:
    sys.exit("doesn't have the package %s" % package)
"""


@dataclass(frozen=True, slots=True)
class _Question:
    """One interpreter and what it must have."""

    key: str
    python: str | None
    role: str
    package: str
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """What is added to the environment, by name: it may decide what the interpreter finds."""


async def check_interpreters(members: Sequence[PlannedMember]) -> None:
    """Ask every interpreter that is named, each once for each thing it is for. Raises ConfigError with all problems."""
    questions = {
        _Question(m.python_key, m.python, m.role, ENGINE_PACKAGES.get(m.engine, ""), tuple(sorted(m.env.items()))): None
        for m in members
    }
    answers = await asyncio.gather(*(_ask(question) for question in questions))
    problems = list(dict.fromkeys(answer for answer in answers if answer))
    if problems:
        raise ConfigError("\n".join(problems))


async def _ask(question: _Question) -> str:
    """What is wrong; "" for nothing."""
    if question.python is None:
        if not question.package or importlib.util.find_spec(question.package) is not None:
            return ""
        return f"{question.key}: the launcher's own interpreter has no package {question.package}. {_advice(question)}"
    problem = await _probe(question, program_of(question.python))
    return f"{question.key}: {question.python} {problem}. {_advice(question)}" if problem else ""


def program_of(python: str) -> str:
    """A configured interpreter as it is executed."""
    return os.path.expanduser(python)


async def _probe(question: _Question, python: str) -> str:
    modules = [module_of(question.role).removesuffix(".critic"), "argosy.rpc.server", "argosy.membership.etcd"]
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-c", _PROBE, question.package, *modules,
            env={**os.environ, **dict(question.env)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        return f"can't be started: {error.strerror}"
    try:
        _, said = await asyncio.wait_for(process.communicate(), PROBE_TIMEOUT_S)
    except TimeoutError:
        return f"did not answer within {PROBE_TIMEOUT_S:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 0:
        return ""
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"ended with code {process.returncode}"


def _advice(question: _Question) -> str:
    if question.package in _IN_ENGINES_VENV:
        return (
            "`make install-engines` makes an environment that has it: set argosy.services.rollout.python="
            ".venvs/engines/bin/python"
        )
    python = Path(question.python or "python")
    return f"Install argosy there: {python} -m pip install -e '.[all]'"
