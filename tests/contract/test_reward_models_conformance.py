"""`argosy reward check` finds no fault in a scoring model's service, nor in a judge's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from argosy.config import Config
from argosy.reward.build import build_core
from argosy.reward.conformance import check_server, describe, failures
from argosy.reward.service import add_to_server
from argosy.rpc.gate import Gate
from argosy.rpc.server import RpcServer
from support.model_server import model_server
from support.scoring import save_tiny_scorer


@asynccontextmanager
async def served(values: Mapping[str, Any]) -> AsyncIterator[str]:
    """The address of the reward service that the configuration makes."""
    core = build_core(Config().with_values(values))
    gate = Gate("reward-0")
    server = RpcServer.listen("127.0.0.1", 0, gate=gate)
    await server.start()
    await server.serve(add_to_server(core, server.server, gate))
    try:
        yield server.address
    finally:
        await server.stop(0)
        await core.close()


async def check(values: Mapping[str, Any]) -> None:
    async with served(values) as address:
        findings = await check_server(address, timeout_s=20)
    assert not failures(findings), describe(findings)
    assert len([finding for finding in findings if finding.result.name == "PASSED"]) > 25


async def test_a_scoring_model(tmp_path: Path) -> None:
    path = save_tiny_scorer(tmp_path / "m")
    await check({
        "argosy.reward.kind": "model", "argosy.reward.model.path": str(path), "argosy.reward.model.device": "cpu",
    })  # fmt: skip


async def test_a_judge() -> None:
    with model_server() as server:
        await check(
            {
                "argosy.reward.kind": "judge",
                "argosy.reward.judge.endpoint.url": f"{server.url}/v1",
                "argosy.reward.judge.endpoint.model": "big",
            }
        )
