"""A reward service that asks somebody else's server keeps the contract as any other does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from argosy.config import Config
from argosy.reward.build import build_core
from argosy.reward.conformance import check_server
from argosy.reward.service import add_to_server
from contract.forms import Form
from support.environment_server import environment_server
from support.gym_server import gym_server
from support.model_server import model_server


@contextmanager
def served(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server of that kind, which judges by whether the truth is in the answer."""

    def score(path: str, body: dict[str, Any]) -> Any:
        return {"results": [{"score": str(one["ground_truth"]) in one["response"]} for one in body["items"]]}

    if kind == "http":
        with model_server() as http:
            monkeypatch.setattr(http, "answer", score)
            yield http.url
    elif kind == "nemo_gym":
        with gym_server() as gym:
            yield gym.url
    else:
        with environment_server() as environment:
            yield environment.url


@pytest.mark.parametrize("kind", ["http", "nemo_gym", "verifiers"])
async def test_each_adapter_passes_the_conformance_suite(
    kind: str, monkeypatch: pytest.MonkeyPatch, grpc_form: Form
) -> None:
    with served(kind, monkeypatch) as url:
        core = build_core(Config().with_values({"argosy.reward.kind": kind, "argosy.reward.server.url": url}))
        address = await grpc_form.serve(lambda server, gate: add_to_server(core, server, gate))
        findings = await check_server(address)
        await core.close()
    assert {finding.check: finding.wrong for finding in findings if finding.result.value == "failed"} == {}
    assert len(findings) > 25
