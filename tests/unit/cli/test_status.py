"""`argosy status` and `argosy members` over a controller's real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from argosy.cli import lookup
from argosy.cli.main import main
from argosy.config import Config
from argosy.controller.control import RunControl
from argosy.controller.serving import serve_control
from argosy.membership.memory import MemoryMembership
from argosy.telemetry.traces import Tracing
from argosy.types.errors import UnavailableError
from argosy.types.ids import PolicyVersion
from argosy.types.records import Member, MemberState


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[RunControl]:
    control, membership = RunControl("run-7", 20), MemoryMembership()
    version = PolicyVersion("l0", 3, "ab" * 32)
    control.view.state, control.view.step, control.view.version = "running", 3, version
    control.view.metrics = {"critic/score/mean": 0.25, "perf/unseen": 1.0}
    await membership.register(
        Member("rollout-0", "rollout", "127.0.0.1:1", "x", engine="hf", state=MemberState.READY, version=version)
    )
    async with serve_control(control, membership, folder, Config(), Tracing(None)):
        control.at_stage("gen")
        control.vitals.sent("rollout-0", 5)
        control.vitals.failed("rollout-0", UnavailableError("lost [for] a moment"))
        yield control
    await membership.close()


def run(folder: Path, *words: str) -> int:
    async def both() -> int:
        async with served(folder):
            return await asyncio.to_thread(main, [*words, "--run", str(folder)])

    return asyncio.run(both())


def answer(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run(folder, *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_for_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(tmp_path, capsys, "status")
    assert (found["run_id"], found["state"], found["step"], found["total_steps"]) == ("run-7", "running", 3, 20)
    assert (found["stage"], found["stall"]) == ("gen", "")
    assert found["version"].startswith("l0")
    [member] = answer(tmp_path, capsys, "members", "--role", "rollout")["members"]
    assert (member["member_id"], member["state"], member["samples"]) == ("rollout-0", "ready", 5)
    assert member["error"] == "lost [for] a moment"
    assert {one["role"] for one in answer(tmp_path, capsys, "members")["members"]} == {"rollout", "controller"}


def test_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(tmp_path, "status") == 0
    shown = capsys.readouterr().out
    assert "3 of 20" in shown
    assert "gen for 0 s" in shown
    assert "critic/score/mean" in shown
    assert "perf/unseen" not in shown
    assert run(tmp_path, "members") == 0
    shown = capsys.readouterr().out
    assert "rollout-0 (hf)" in shown
    assert "rollout-0, 0 s ago: lost [for] a moment" in shown, "whole, on a narrow screen too"


def test_a_watch_ends_with_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its last answer says so, or there is no answer any more."""
    monkeypatch.setattr(lookup, "PAUSE_S", 0.05)
    monkeypatch.setattr(lookup, "GONE_AFTER_S", 0.2)

    async def watch(command: str, *options: str, ends: bool) -> int:
        async with served(tmp_path) as control:
            watching = asyncio.create_task(
                asyncio.to_thread(main, [command, "--watch", *options, "--run", str(tmp_path)])
            )
            while not capsys.readouterr().out:  # noqa: ASYNC110 - the other thread prints
                await asyncio.sleep(0.02)
            if ends:
                control.ended("finished")
                return await asyncio.wait_for(watching, 30)
        return await asyncio.wait_for(watching, 30)

    assert asyncio.run(watch("status", "--json", ends=True)) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["state"] == "finished"
    assert asyncio.run(watch("members", "--json", ends=False)) == 0
    # Tables into a pipe too: this waits for the first while the run is under way.
    assert asyncio.run(asyncio.wait_for(watch("status", ends=True), 30)) == 0
    assert "finished" in capsys.readouterr().out


def test_a_run_that_was_killed_leaves_its_address_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "endpoint.json").write_text('{"address": "127.0.0.1:1"}')
    for command in (["status"], ["members"], ["scale", "rollout=2"]):
        assert main([*command, "--run", str(tmp_path)]) == 1
        assert "If the run was killed, its `argosy train` once more goes on" in capsys.readouterr().err


def test_no_run_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--run", str(tmp_path)]) == 1
    assert "no run is under way" in capsys.readouterr().err
    assert main(["members", "--run", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err
