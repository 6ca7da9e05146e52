"""What needs a server of its own, one for both: an untied model, and then the end of its engine (cases D2, D6)."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator

import pytest

from argosy.types.records import FinishReason
from contract.engines.conftest import ENGINES, Weights, client_of, save, weights_of
from contract.engines.served import LONG, Served, ask, missing, serving
from contract.engines.test_failures import outcome
from contract.engines.test_weights import check_head
from contract.forms import Form, request, until

REAL = [pytest.param("hf", marks=pytest.mark.chaos), *(one for one in ENGINES if one not in ("hf", "simulated"))]


@pytest.fixture(scope="module", params=REAL)
def untied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    reason = missing(request.param)
    if reason:
        pytest.skip(reason)
    with serving(request.param, save(tmp_path_factory.mktemp("untied") / "model", seed=3, tied=False)) as found:
        yield found


async def test_d2_untied_heads(untied: Served, grpc_form: Form) -> None:
    state = weights_of(untied.model)
    async with client_of(untied) as rollout:
        await check_head(untied.model, rollout, Weights(rollout, grpc_form, state), state)


async def test_d6_a_killed_engine_fails_its_samples_and_ends_its_server(untied: Served) -> None:
    """The last that is asked of it."""
    async with client_of(untied) as rollout:
        await ask(rollout, [request(0)])
        count = (await rollout.status()).generated_token_count
        task = asyncio.create_task(outcome(rollout))
        await until(rollout, lambda status: status.generated_token_count >= count + 8)
        victims = untied.children
        started = time.monotonic()
        untied.signal(signal.SIGKILL, children=bool(victims))
        found, error = await task
        assert time.monotonic() - started < 30  # the deadline of the samples
        assert error or found
        for completion in found:
            assert completion.finish_reason is FinishReason.FAILED
            assert len(completion.token_ids) == len(completion.log_probs) < LONG
        assert await asyncio.to_thread(untied.process.wait, 30) != 0
