"""New weights in every engine: whole or not at all, and nothing of the old ones is left (cases D1, D2, D10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from argosy.roles.rollout import Rollout
from argosy.rpc.clients.rollout import RolloutClient
from argosy.types.errors import ArgosyError, DeadlineError, WeightsRefusedError
from argosy.weightsync import Snapshot, build_manifest, find_tied
from argosy.weightsync.transports import SendOptions, TransferPlan, load_transport
from contract.engines.conftest import Weights, weights_of
from contract.engines.served import LONG, CutOff, Served, ask, plain_logits, sync
from contract.engines.test_sampling import TOLERANCE
from contract.forms import Form, mutation, request, until
from support.freezing import freeze

GREEDY = [request(position, temperature=0.0) for position in range(3)]


def check_against(model: Path, state: Any, completions: list[Any]) -> None:
    """Greedy answers are the plain model's, log-probs too."""
    for one, completion in zip(GREEDY, completions, strict=True):
        logits = plain_logits(state, one.prompt_ids, completion.token_ids, model)
        expected = logits.log_softmax(-1)
        for index, token in enumerate(completion.token_ids):
            assert completion.log_probs[index] == pytest.approx(float(expected[index, token]), abs=TOLERANCE)
            assert float(expected[index, token]) >= float(expected[index].max()) - TOLERANCE


async def test_d1_nothing_is_cached_over_an_update(
    served: Served, rollout: RolloutClient, weights: Weights, other: dict[str, Any]
) -> None:
    old = await ask(rollout, GREEDY)
    await ask(rollout, GREEDY)
    version = await weights.set(other)
    status = await rollout.status()
    assert (status.version, status.state, status.cached_token_count) == (version, "ready", 0)
    new = [(await ask(rollout, [one]))[0] for one in GREEDY]
    assert new[0].cached_prompt_tokens == 0
    assert [c.token_ids for c in new] != [c.token_ids for c in old]
    assert all([run.version for run in c.versions] == [version] for c in new)
    if served.computes:
        check_against(served.model, other, new)
    await weights.restore()
    back = await ask(rollout, GREEDY)
    assert [c.token_ids for c in back] == [c.token_ids for c in old]


async def test_d1_a_sample_in_flight_tells_which_versions_it_used(
    served: Served, rollout: RolloutClient, weights: Weights, other: dict[str, Any]
) -> None:
    before = (await rollout.status()).version
    count = (await rollout.status()).generated_token_count
    one = request(0, max_tokens=LONG, temperature=0.0)
    task = asyncio.create_task(ask(rollout, [one]))
    await until(rollout, lambda status: status.generated_token_count >= count + 4)
    await rollout.pause("keep", mutation())
    after = await weights.set(other)
    await rollout.resume(mutation())
    [found] = await task
    assert [run.version for run in found.versions] == [before, after]
    first = found.versions[0].token_count
    if served.computes:
        for state, span in ((served.model, slice(0, first)), (other, slice(first, None))):
            logits = plain_logits(state, one.prompt_ids, found.token_ids, served.model).log_softmax(-1)
            expected = [float(logits[index, token]) for index, token in enumerate(found.token_ids)]
            assert list(found.log_probs[span]) == pytest.approx(expected[span], abs=TOLERANCE)


async def test_d1_an_update_without_a_pause(
    served: Served, rollout: RolloutClient, weights: Weights, other: dict[str, Any]
) -> None:
    count = (await rollout.status()).generated_token_count
    task = asyncio.create_task(ask(rollout, [request(k, max_tokens=LONG) for k in range(4)]))
    await until(rollout, lambda status: status.generated_token_count >= count + 8)
    after = await weights.set(other)
    for completion in await task:
        assert len(completion.token_ids) == LONG
        assert len(completion.versions) <= 2
    [late] = await ask(rollout, [request(9)])
    assert [run.version for run in late.versions] == [after]


@pytest.mark.parametrize("transport", ["collective", "shared_memory"])
async def test_d1_weights_that_come_by_another_transport_are_the_same(
    served: Served, rollout: RolloutClient, weights: Weights, other: dict[str, Any], transport: str
) -> None:
    snapshot, source = await weights.offer(other)
    sync_id = f"by-{transport}"
    async with transfer_of(snapshot, transport, sync_id) as transfer:
        await rollout.init_weight_transfer(transport, mutation())
        await rollout.start_weight_update(sync_id, snapshot.manifest, mutation())
        taken = await rollout.update_weights(sync_id, source, mutation(), transfer.offers[0])
        version = await rollout.finish_weight_update(sync_id, mutation())
    assert taken == sum(spec.size_bytes for spec in snapshot.manifest.tensors if not spec.tied_to)
    assert version == snapshot.manifest.version == (await rollout.status()).version
    if served.computes:
        check_against(served.model, other, await ask(rollout, GREEDY))
    if transport == "collective":  # vLLM's own worker has joined the group, the others have a process for it
        joined = [child for child in served.children if "argosy.weightsync.collective.worker" in child.cmdline()]
        assert bool(joined) == (served.engine != "vllm")


async def test_d10_a_collective_whose_sender_hangs_costs_its_deadline(
    served: Served, rollout: RolloutClient, weights: Weights, other: dict[str, Any]
) -> None:
    before, old = (await rollout.status()).version, await ask(rollout, GREEDY)
    snapshot, source = await weights.offer(other)
    await rollout.init_weight_transfer("collective", mutation())
    await rollout.start_weight_update("hanging", snapshot.manifest, mutation())
    async with transfer_of(snapshot, "collective", "hanging") as transfer:
        freeze(transfer.worker_pid)
        with pytest.raises(DeadlineError):
            await rollout.update_weights("hanging", source, mutation(deadline_s=3.0), transfer.offers[0])
    assert (await rollout.status()).version == before
    assert [c.token_ids for c in await ask(rollout, GREEDY)] == [c.token_ids for c in old]
    async with transfer_of(snapshot, "collective", "hanging") as transfer:
        await rollout.update_weights("hanging", source, mutation(), transfer.offers[0])
    assert await rollout.finish_weight_update("hanging", mutation()) == snapshot.manifest.version


@asynccontextmanager
async def transfer_of(snapshot: Snapshot, transport: str, sync_id: str) -> AsyncIterator[Any]:
    """Open at this process, for one receiver."""
    plan = TransferPlan(sync_id, 1, 60, mutation().request_id)
    transfer = await load_transport(transport).open_transfer(snapshot, plan, SendOptions())
    try:
        yield transfer
    finally:
        await transfer.close()


async def test_d2_tied_embeddings(served: Served, rollout: RolloutClient, weights: Weights) -> None:
    """After the embedding has changed, the head has changed with it, the redundant one of the file too."""
    state = weights_of(served.model)
    assert find_tied(state) == {"lm_head.weight": "model.embed_tokens.weight"}
    if served.computes:
        await check_head(served.model, rollout, weights, state)


async def check_head(model: Path, rollout: Rollout, weights: Weights, state: dict[str, Any]) -> None:
    """Give the model another embedding and another head; the answers are those weights' each time."""
    import torch

    check_against(model, model, await ask(rollout, GREEDY))
    generator = torch.Generator().manual_seed(5)
    changed = dict(state)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in find_tied(state):
            changed[name] = changed[find_tied(state)[name]]
        else:
            noise = torch.randn(state[name].shape, generator=generator)
            changed[name] = state[name] + noise * state[name].std()
    version = await weights.set(changed)
    found = await ask(rollout, GREEDY)
    assert all(run.version == version for completion in found for run in completion.versions)
    check_against(model, changed, found)


@pytest.mark.parametrize("fault", ["misspelt", "shape", "dtype", "missing"])
async def test_d10_weights_that_do_not_fit_are_refused_as_a_whole(
    served: Served, rollout: RolloutClient, other: dict[str, Any], fault: str
) -> None:
    import torch

    before, old = (await rollout.status()).version, await ask(rollout, GREEDY)
    state = dict(other)
    name = "model.norm.weight"
    tensor = state.pop(name)
    if fault == "misspelt":
        state["model.nrom.weight"] = tensor
    elif fault == "shape":
        state[name] = tensor[:-1]
    elif fault == "dtype":
        state[name] = tensor.to(torch.float64)
    manifest = build_manifest("main", 1, state, find_tied(state))
    await rollout.init_weight_transfer("stream", mutation())
    with pytest.raises(WeightsRefusedError, match=name if fault != "misspelt" else "nrom"):
        await rollout.start_weight_update(f"refused-{fault}", manifest, mutation())
    assert (await rollout.status()).version == before
    assert [c.token_ids for c in await ask(rollout, GREEDY)] == [c.token_ids for c in old]


async def test_d10_a_sender_that_dies_half_way_changes_nothing(
    served: Served, rollout: RolloutClient, grpc_form: Form, weights: Weights, other: dict[str, Any]
) -> None:
    before, old = (await rollout.status()).version, await ask(rollout, GREEDY)
    snapshot, _ = await weights.offer(other)
    broken = await grpc_form.source(CutOff(snapshot))
    with pytest.raises(ArgosyError):
        await sync(rollout, broken, snapshot.manifest, "cut-off")
    assert (await rollout.status()).version == before
    with pytest.raises(ArgosyError):
        await rollout.finish_weight_update("cut-off", mutation())
    assert [c.token_ids for c in await ask(rollout, GREEDY)] == [c.token_ids for c in old]
    assert (await rollout.status()).version == before
