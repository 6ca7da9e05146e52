"""Interpreters are asked before anything starts: there, running, with argosy and the engine's package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from argosy.config import Config
from argosy.controller.launch import interpreters
from argosy.controller.launch.interpreters import check_interpreters
from argosy.controller.launch.plan import plan_members
from argosy.types.errors import ConfigError


async def problems(values: dict[str, object], role: str = "rollout") -> str:
    """What is said about the processes of one role; "" if they may start."""
    try:
        await check_interpreters(plan_members(Config().with_values(values), {role: 1}))
    except ConfigError as error:
        return error.message
    return ""


def script(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("role", ["rollout", "reward", "reference", "trainer", "critic"])
async def test_one_that_has_everything(role: str) -> None:
    assert await problems({f"argosy.services.{role}.python": sys.executable}, role) == ""
    assert await problems({}, role) == ""


async def test_one_without_argosy(tmp_path: Path) -> None:
    bare = script(tmp_path, f'exec {sys.executable} -I -S "$@"')
    found = await problems({"argosy.services.rollout.python": bare})
    assert found.startswith(f"argosy.services.rollout.python: {bare} can't import argosy.rollout: ")
    assert f"Install argosy there: {bare} -m pip install" in found


async def test_one_without_the_engine(tmp_path: Path) -> None:
    """Of a pool; and the launcher's own, where none is named."""
    rollout: dict[str, object] = {"actor_rollout_ref.rollout.name": "vllm"}
    pool: dict[str, object] = {"argosy.pools": {"fast": {"engine": "vllm", "python": sys.executable}}}
    assert "argosy.services.rollout.python: the launcher's own interpreter has no package vllm" in await problems(
        rollout
    )
    found = await problems(pool)
    assert f"argosy.pools.fast.python: {sys.executable} doesn't have the package vllm" in found
    assert "make install-engines" in found


async def test_ones_that_do_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "argosy.services.rollout.python"
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF and nothing more")
    broken.chmod(0o755)
    assert f"{broken} can't be started" in await problems({key: str(broken)})
    assert "ended with code 3" in await problems({key: script(tmp_path, "exit 3")})
    monkeypatch.setattr(interpreters, "PROBE_TIMEOUT_S", 0.3)
    assert "did not answer within 0.3 s" in await problems({key: script(tmp_path, "exec sleep 60")})


async def test_pools_that_differ_in_their_environment_only_are_asked_both(tmp_path: Path) -> None:
    python = script(tmp_path, f'test -n "$BREAKS" && exit 3; exec {sys.executable} "$@"')
    pools = {"well": {}, "broken": {"env": {"BREAKS": "yes"}}, "same": {"env": {"BREAKS": "so"}}}
    found = await problems({"argosy.services.rollout.python": python, "argosy.pools": pools})
    assert found.count(f"argosy.services.rollout.python: {python} ended with code 3") == 1
