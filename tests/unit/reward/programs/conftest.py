from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from argosy.reward.verifiers.code import CodeVerifier
from argosy.sandbox.options import SandboxOptions
from argosy.types.records import Outcome, Scored

Verify = Callable[..., Outcome]


@pytest.fixture
def make_verifier() -> Iterator[Callable[..., CodeVerifier]]:
    """Verifiers whose sandboxes end with the test."""
    made: list[CodeVerifier] = []

    def make(*, timeout_s: float = 120, **options: Any) -> CodeVerifier:
        verifier = CodeVerifier()
        verifier.configure(SandboxOptions(**options), timeout_s=timeout_s)
        made.append(verifier)
        return verifier

    yield make
    for verifier in made:
        verifier.close()


@pytest.fixture
def run(make_verifier: Callable[..., CodeVerifier]) -> Callable[..., Scored]:
    """Judge code, fenced for Python unless it brings its own fences; it must be scored."""
    made: dict[str, CodeVerifier] = {}

    def run(code: str, tests: Any, *, extra: dict[str, Any] | None = None, **options: Any) -> Scored:
        verifier = made.setdefault(repr(options), make_verifier(**options)) if options else made.get("")
        if verifier is None:
            verifier = made[""] = make_verifier()
        response = code if "```" in code else f"```python\n{code}\n```"
        outcome = verifier.verify(response, tests, extra or {})
        assert isinstance(outcome, Scored), outcome
        return outcome

    return run
