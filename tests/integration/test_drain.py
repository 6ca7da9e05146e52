"""SIGTERM of a rollout server with samples in flight: it drains at once, and hands over what it can't finish."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from argosy.membership import server
from argosy.membership.etcd import EtcdMembership
from argosy.membership.etcd_client import EtcdOptions
from argosy.modeling.tiny import save_tiny_model
from argosy.rpc.clients.rollout import RolloutClient
from argosy.types.errors import StateError
from argosy.types.ids import SampleId
from argosy.types.records import Completion, FinishReason, GenerateRequest, Member, MemberState, SamplingParams

GRACE_S = 6
LENGTH = 40_000
"""Tokens that nobody waits for."""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, ports = tmp_path_factory.mktemp("etcd"), server.free_ports()
    argv = server.command(server.find_binary(None), name=f"drain-{os.getpid()}", data_dir=folder / "data", ports=ports)
    with (folder / "etcd.log").open("ab") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    yield ports.endpoint
    process.kill()
    process.wait()


def serve(model: Path, etcd: str, log: Path) -> subprocess.Popen[bytes]:
    """A server that serves the weights that it loads, as in a run of rollouts alone."""
    command = [
        sys.executable, "-m", "argosy.cli.main", "serve", "rollout", "--member", "rollout-0",
        f"actor_rollout_ref.model.path={model}", f"argosy.membership.endpoints=[{etcd}]",
        "argosy.rollout_only=true", f"argosy.stop_grace_s={GRACE_S}", "argosy.rollout.slot_count=2",
        f"actor_rollout_ref.rollout.max_model_len={LENGTH + 100}",
    ]  # fmt: skip
    with log.open("w") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "OMP_NUM_THREADS": "1"})


async def states(membership: EtcdMembership) -> AsyncIterator[Member | None]:
    async for members in membership.watch("rollout"):
        yield members[0] if members else None


async def test_sigterm_drains_at_once_and_hands_over_the_tokens(etcd: str, tmp_path: Path) -> None:
    membership = EtcdMembership(EtcdOptions((etcd,), lease_ttl_s=10))
    began, log = time.monotonic(), tmp_path / "server.log"
    save_tiny_model(tmp_path / "model", seed=1, max_position_embeddings=LENGTH + 100)
    process = serve(tmp_path / "model", etcd, log)
    seen: list[MemberState] = []
    try:
        async with asyncio.timeout(120):
            watching = states(membership)
            address = ""
            async for member in watching:
                if member is not None:
                    seen.append(member.state)
                    address = member.address
                    if member.state is MemberState.READY:
                        break
            print(f"\nready {time.monotonic() - began:.1f} s after its start")
            client = RolloutClient(address)
            params = SamplingParams(LENGTH, temperature=1.0, ignore_eos=True)
            request = GenerateRequest(SampleId(0, 0, 0), (1, 40, 41), params, "train")
            told = asyncio.Event()
            answer = asyncio.create_task(_one(client, request, told))
            await told.wait()
            stopped = time.monotonic()
            process.send_signal(signal.SIGTERM)
            async for member in watching:
                if member is not None and member.state is MemberState.DRAINING:
                    break
            assert not answer.done(), "it is told before anything is ended"
            with pytest.raises(StateError, match="draining"):
                await _one(client, GenerateRequest(SampleId(0, 1, 0), (1, 40), params, "train"), told)
            completion = await answer
            took_s = time.monotonic() - stopped
            async for member in watching:
                if member is None:
                    break
            code = await asyncio.to_thread(process.wait, 60)
            await client.close()
    finally:
        process.kill()
        await membership.close()
    assert seen == [MemberState.JOINING, MemberState.READY]
    assert completion.finish_reason is FinishReason.ABORTED
    assert 0 < len(completion.token_ids) < LENGTH
    assert len(completion.log_probs) == len(completion.token_ids)
    assert took_s >= GRACE_S / 2 - 0.5, "half of the grace is for it to end by itself"
    assert code == 0, log.read_text()


async def _one(client: RolloutClient, request: GenerateRequest, told: asyncio.Event) -> Completion:
    answers = client.generate([request], deadline_s=100, on_run=lambda _: told.set())
    [completion] = [one async for one in answers]
    return completion
