"""Each honoured key and each argosy.* key has a test that changes it. That the test sees it, `drop_keys` proves."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from argosy.config.convert import leaves
from argosy.config.keys import HONOURED
from unit.config.effects.registry import TESTS

FOLDER = Path(__file__).parent
KEYS = [*HONOURED, *(path for path, _ in leaves() if path.startswith("argosy."))]


@functools.cache
def texts_of(test: str) -> frozenset[str]:
    """Every literal text in a test, its decorators included and its docstring left out."""
    file, _, name = test.partition("::")
    for node in ast.parse((FOLDER / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            body = node.body[ast.get_docstring(node) is not None :]
            parts = [part for statement in [*node.decorator_list, *body] for part in ast.walk(statement)]
            return frozenset(part.value for part in parts if isinstance(part, ast.Constant) and type(part.value) is str)
    raise AssertionError(f"there is no test {test}")


def test_each_key_is_registered() -> None:
    assert sorted(TESTS) == sorted(KEYS)


def test_each_field_is_a_registered_key() -> None:
    """Fields of the schema that are in no table would be settings without a test."""
    assert {path for path, _ in leaves()} <= TESTS.keys()


@pytest.mark.parametrize("key", sorted(TESTS))
def test_each_registered_test_changes_its_key(key: str) -> None:
    assert any(text == key or text.startswith(f"{key}=") for text in texts_of(TESTS[key])), TESTS[key]
