"""A key that no code reads is ignored in silence, whatever the key table says."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from argosy.config.convert import leaves

REPOSITORY = Path(__file__).resolve().parents[3]
ONE_VALUE_ONLY = {
    "actor_rollout_ref.actor.fsdp_config.model_dtype",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
}
"""Validated to the one value that is done anyway, so that nothing needs to read them."""
NOT_WIRED: dict[str, str] = {}
"""Key → why no code reads it yet."""


@functools.cache
def attributes_read() -> frozenset[str]:
    """Names of all attributes in the code outside the configuration itself."""
    names: set[str] = set()
    for root in ("shared", "services", "controller"):
        for file in (REPOSITORY / root / "argosy").rglob("*.py"):
            inside = file.relative_to(REPOSITORY / root / "argosy")
            if inside.parts[0] not in ("config", "api") and inside != Path("cli/config.py"):
                names.update(re.findall(r"\.(\w+)\b", file.read_text(encoding="utf-8")))
    return frozenset(names)


def keys() -> list[object]:
    return [
        pytest.param(path, marks=[pytest.mark.xfail(reason=NOT_WIRED[path], strict=True)] if path in NOT_WIRED else [])
        for path, _ in leaves()
        if path not in ONE_VALUE_ONLY
    ]


@pytest.mark.parametrize("path", keys())
def test_read(path: str) -> None:
    assert path.rpartition(".")[2] in attributes_read(), f"no code reads {path}"
