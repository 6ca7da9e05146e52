"""Proof that these tests see what they are about:

    PYTHONPATH=tests pytest -p unit.config.effects.drop_keys tests/unit/config/effects

Each registered test runs with its key dropped wherever the test sets it, as if no code read the key; it passes here if
it fails so.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from unit.config.effects.registry import TESTS


def _key_of(item: pytest.Function) -> str | None:
    """The key that a test is registered for; of several, the one in its parameters."""
    keys = [key for key, test in TESTS.items() if test == f"{item.path.name}::{item.originalname}"]
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    wanted = parameters.get("key", keys[0] if keys else None)
    return wanted if wanted in keys else None


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Only tests of keys."""
    items[:] = [item for item in items if _key_of(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Generator[None, Any, Any]:
    """Run a test without its key, and turn the outcome round."""
    key = _key_of(item)
    with pytest.MonkeyPatch.context() as patch:
        _drop(str(key), patch)
        try:
            yield
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - any failure is the one that is wanted
            return None
    raise AssertionError(f"{item.nodeid} passes although nothing was set by {key}")


def _drop(key: str, patch: pytest.MonkeyPatch) -> None:
    convert, load = sys.modules["argosy.config.convert"], sys.modules["argosy.config.load"]
    replace, overrides = convert.replace_values, load._hydra_overrides

    def replace_others(config: Any, values: dict[str, Any]) -> Any:
        return replace(config, {path: value for path, value in values.items() if path != key})

    def other_overrides(argument: Any, *rest: Any) -> Iterator[str]:
        if argument.key != key and not argument.key.startswith(f"{key}."):
            yield from overrides(argument, *rest)

    patch.setattr(convert, "replace_values", replace_others)
    patch.setattr(load, "_hydra_overrides", other_overrides)
