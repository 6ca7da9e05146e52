"""The four phases of a weight sync: trainer → rollout and rollout → rollout, in process and over gRPC."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from argosy.roles.rollout import Rollout
from argosy.roles.weights import WeightSource
from argosy.types.errors import (
    CorruptDataError,
    DeadlineError,
    InvalidInputError,
    NotFoundError,
    StateError,
    UnavailableError,
    WeightsRefusedError,
)
from argosy.types.ids import PolicyVersion
from argosy.types.records import WeightChunk, WeightsManifest
from argosy.weightsync import Snapshot, build_manifest, find_tied, manifest_digest, verify_agreement
from contract.forms import DEADLINE_S, Form, MakeRollout, collect, mutation, request, until

State = dict[str, torch.Tensor]


def weights_of(folder: Path) -> State:
    """A model's state dict, tied names sharing memory."""
    from transformers import AutoModelForCausalLM

    state: State = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    return state


def freeze(state: State, step: int = 1, lineage: str = "main") -> Snapshot:
    return Snapshot.freeze(lineage, step, state, find_tied(state))


async def sync(
    rollout: Rollout, source: WeightSource, manifest: WeightsManifest, sync_id: str = "sync-1"
) -> PolicyVersion:
    await rollout.init_weight_transfer("stream", mutation())
    await rollout.start_weight_update(sync_id, manifest, mutation())
    await rollout.update_weights(sync_id, source, mutation())
    return await rollout.finish_weight_update(sync_id, mutation())


ASKED = [request(position, temperature=0.0) for position in range(4)]


async def answers(rollout: Rollout) -> dict[str, tuple[int, ...]]:
    return {key: completion.token_ids for key, completion in (await collect(rollout, ASKED)).items()}


async def test_d1_after_a_sync_it_answers_like_a_fresh_engine(
    form: Form, make_rollout: MakeRollout, other_tiny: Path
) -> None:
    core = make_rollout()
    rollout = await form.rollout(core)
    old = await collect(rollout, ASKED)
    snapshot = freeze(weights_of(other_tiny))
    version = await sync(rollout, await form.source(snapshot), snapshot.manifest)
    assert version == snapshot.manifest.version
    status = await rollout.status()
    assert (status.version, status.cached_token_count, status.state) == (version, 0, "ready")
    new = await collect(rollout, ASKED)
    fresh = await collect(make_rollout(other_tiny), ASKED)
    for key, completion in fresh.items():
        assert new[key].token_ids == completion.token_ids != old[key].token_ids
        assert new[key].log_probs == pytest.approx(completion.log_probs, abs=1e-5)
        assert [run.version for run in new[key].versions] == [version]
    verify_agreement(snapshot.manifest, await core.weight_source().get_manifest())


async def test_d1_a_request_in_flight_tells_which_versions_it_used(
    form: Form, make_rollout: MakeRollout, other_tiny: Path
) -> None:
    rollout = await form.rollout(make_rollout())
    before = (await rollout.status()).version
    task = asyncio.create_task(collect(rollout, [request(0, max_tokens=100)]))
    await until(rollout, lambda status: status.generated_token_count > 5)
    await rollout.pause("keep", mutation())
    snapshot = freeze(weights_of(other_tiny))
    after = await sync(rollout, await form.source(snapshot), snapshot.manifest)
    await rollout.resume(mutation())
    completion = (await task)["train:e0-p0-k0-a0"]
    assert [run.version for run in completion.versions] == [before, after]
    assert sum(run.token_count for run in completion.versions) == len(completion.token_ids) == 100


@pytest.mark.parametrize("redundant", ["omitted", "tied", "carried"])
async def test_d2_a_tied_model_takes_the_head_omitted_tied_or_carried(
    form: Form, make_rollout: MakeRollout, other_tiny: Path, redundant: str
) -> None:
    state = dict(weights_of(other_tiny))
    tied = find_tied(state)
    assert tied == {"lm_head.weight": "model.embed_tokens.weight"}
    if redundant == "omitted":
        del state["lm_head.weight"]
    if redundant == "carried":
        state["lm_head.weight"] = state["lm_head.weight"].clone()
    snapshot = Snapshot.freeze("main", 1, state, tied if redundant == "tied" else {})
    rollout = await form.rollout(make_rollout())
    await sync(rollout, await form.source(snapshot), snapshot.manifest)
    assert await answers(rollout) == await answers(make_rollout(other_tiny))


async def test_d2_a_carried_head_with_other_values_is_refused(
    form: Form, make_rollout: MakeRollout, other_tiny: Path
) -> None:
    state = dict(weights_of(other_tiny))
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    rollout = await form.rollout(make_rollout())
    await refused(rollout, build_manifest("main", 1, state), "lm_head.weight")


@pytest.mark.parametrize("fault", ["misspelt", "shape", "dtype", "missing", "digest"])
async def test_d10_weights_that_do_not_fit_are_refused_as_a_whole(
    form: Form, make_rollout: MakeRollout, other_tiny: Path, fault: str
) -> None:
    state = dict(weights_of(other_tiny))
    name = "model.norm.weight"
    tensor = state.pop(name)
    if fault == "misspelt":
        state["model.nrom.weight"] = tensor
    elif fault == "shape":
        state[name] = tensor[:-1]
    elif fault == "dtype":
        state[name] = tensor.to(torch.float64)
    elif fault == "digest":
        state[name] = tensor
    manifest = build_manifest("main", 1, state, find_tied(state))
    if fault == "digest":
        forged = dataclasses.replace(manifest.version, digest=manifest_digest(manifest.tensors[:-2]))
        manifest = dataclasses.replace(manifest, version=forged)
    await refused(await form.rollout(make_rollout()), manifest, "digest" if fault == "digest" else "norm.weight")


async def refused(rollout: Rollout, manifest: WeightsManifest, words: str) -> None:
    """The update is refused, the version stays, the old weights answer."""
    before, old = (await rollout.status()).version, await answers(rollout)
    with pytest.raises(WeightsRefusedError, match=words) as caught:
        await rollout.start_weight_update("sync-1", manifest, mutation())
    assert int(caught.value.metadata["fault_count"]) >= 1
    with pytest.raises(NotFoundError):
        await rollout.finish_weight_update("sync-1", mutation())
    assert (await rollout.status()).version == before
    assert await answers(rollout) == old


class Dying:
    """A holder that fails (or goes quiet) after a number of chunks."""

    address = ""

    def __init__(self, snapshot: Snapshot, chunk_count: int, *, spoil: bool = False) -> None:
        self._snapshot = snapshot
        self._chunk_count = chunk_count
        self._spoil = spoil

    async def get_manifest(self) -> WeightsManifest:
        return self._snapshot.manifest

    async def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        count = 0
        async for chunk in self._snapshot.stream_weights(version, names):
            if count == self._chunk_count:
                if not self._spoil:
                    raise UnavailableError("the sender died")
                chunk = dataclasses.replace(chunk, data=bytes(len(chunk.data)))
            yield chunk
            count += 1


@pytest.mark.parametrize("spoil", [False, True])
async def test_d10_a_sender_that_dies_or_sends_rubbish_leaves_the_old_version_on(
    form: Form, make_rollout: MakeRollout, other_tiny: Path, spoil: bool
) -> None:
    rollout = await form.rollout(make_rollout())
    before, old = (await rollout.status()).version, await answers(rollout)
    snapshot = freeze(weights_of(other_tiny))
    bad = await form.source(Dying(snapshot, 5, spoil=spoil))
    await rollout.init_weight_transfer("stream", mutation())
    await rollout.start_weight_update("sync-1", snapshot.manifest, mutation())
    with pytest.raises(CorruptDataError if spoil else UnavailableError):
        await rollout.update_weights("sync-1", bad, mutation(deadline_s=2))
    with pytest.raises(StateError, match="has not received"):
        await rollout.finish_weight_update("sync-1", mutation())
    assert (await rollout.status()).version == before
    assert await answers(rollout) == old
    # The same sync may be tried again from a holder that lives.
    await rollout.update_weights("sync-1", await form.source(snapshot), mutation())
    assert await rollout.finish_weight_update("sync-1", mutation()) == snapshot.manifest.version
    assert await answers(rollout) == await answers(make_rollout(other_tiny))


async def test_d10_a_sender_whose_server_is_killed_half_way(
    grpc_form: Form, make_rollout: MakeRollout, other_tiny: Path
) -> None:
    rollout = await grpc_form.rollout(make_rollout())
    before, old = (await rollout.status()).version, await answers(rollout)
    snapshot = freeze(weights_of(other_tiny))
    reached = asyncio.Event()

    class Stuck(Dying):
        async def stream_weights(
            self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
        ) -> AsyncIterator[WeightChunk]:
            count = 0
            async for chunk in self._snapshot.stream_weights(version, names):
                count += 1
                if count == 6:
                    reached.set()
                    await asyncio.sleep(60)
                yield chunk

    source = await grpc_form.source(Stuck(snapshot, 0))
    await rollout.start_weight_update("sync-1", snapshot.manifest, mutation())
    task = asyncio.create_task(rollout.update_weights("sync-1", source, mutation(deadline_s=3)))
    await reached.wait()
    await grpc_form.servers[-1].server.stop(None)
    with pytest.raises(UnavailableError):
        await task
    assert (await rollout.status()).version == before
    assert await answers(rollout) == old


async def test_phases_out_of_order(form: Form, rollout_core: Any, other_tiny: Path) -> None:
    rollout = await form.rollout(rollout_core)
    snapshot = freeze(weights_of(other_tiny))
    source = await form.source(snapshot)
    with pytest.raises(InvalidInputError, match="carrier-pigeon"):
        await rollout.init_weight_transfer("carrier-pigeon", mutation())
    with pytest.raises(NotFoundError):
        await rollout.update_weights("sync-1", source, mutation())
    with pytest.raises(NotFoundError):
        await rollout.finish_weight_update("sync-1", mutation())
    await rollout.start_weight_update("sync-1", snapshot.manifest, mutation())
    with pytest.raises(StateError, match="has not received"):
        await rollout.finish_weight_update("sync-1", mutation())
    with pytest.raises(NotFoundError):
        await rollout.update_weights("sync-2", source, mutation())
    with pytest.raises(InvalidInputError):
        await rollout.start_weight_update("", snapshot.manifest, mutation())


async def test_each_phase_may_be_repeated(form: Form, make_rollout: MakeRollout, other_tiny: Path) -> None:
    rollout = await form.rollout(make_rollout())
    snapshot = freeze(weights_of(other_tiny))
    source = await form.source(snapshot)
    for _ in range(2):
        await rollout.start_weight_update("sync-1", snapshot.manifest, mutation())
    for _ in range(2):
        await rollout.update_weights("sync-1", source, mutation())
    for _ in range(2):
        assert await rollout.finish_weight_update("sync-1", mutation()) == snapshot.manifest.version


async def test_the_same_sync_id_with_other_weights_is_another_update(
    form: Form, make_rollout: MakeRollout, tiny: Path, other_tiny: Path
) -> None:
    """A controller that resumes publishes a step again, perhaps with other weights, under the same name."""
    rollout = await form.rollout(make_rollout())
    for folder in (other_tiny, tiny):
        snapshot = freeze(weights_of(folder), step=3)
        version = await sync(rollout, await form.source(snapshot), snapshot.manifest, "main-3")
        assert version == snapshot.manifest.version == (await rollout.status()).version
    assert await answers(rollout) == await answers(make_rollout())


async def test_d11_a_newcomer_pulls_from_a_rollout_server(
    form: Form, make_rollout: MakeRollout, other_tiny: Path
) -> None:
    first_core = make_rollout()
    first = await form.rollout(first_core)
    snapshot = freeze(weights_of(other_tiny), step=5)
    await sync(first, await form.source(snapshot), snapshot.manifest)
    newcomer = await form.rollout(make_rollout(start_stale=True))
    with pytest.raises(StateError):
        await collect(newcomer, ASKED)
    source = first.weight_source()  # type: ignore[attr-defined]
    manifest = await source.get_manifest()
    verify_agreement(snapshot.manifest, manifest)
    assert await sync(newcomer, source, manifest) == snapshot.manifest.version
    assert await answers(newcomer) == await answers(first)
    assert (await newcomer.status()).state == "ready"


async def test_weights_of_this_process_cannot_be_fetched_by_another(grpc_form: Form, rollout_core: Any) -> None:
    rollout = await grpc_form.rollout(rollout_core)
    with pytest.raises(InvalidInputError, match="in this process"):
        await rollout.update_weights("sync-1", rollout_core.weight_source(), mutation())


async def test_a_deadline_ends_a_sync_from_a_holder_that_hangs(
    form: Form, make_rollout: MakeRollout, other_tiny: Path
) -> None:
    snapshot = freeze(weights_of(other_tiny))

    class Hanging(Dying):
        async def stream_weights(
            self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
        ) -> AsyncIterator[WeightChunk]:
            yield await anext(self._snapshot.stream_weights(version, names))
            await asyncio.sleep(DEADLINE_S)

    rollout = await form.rollout(make_rollout())
    source = await form.source(Hanging(snapshot, 0))
    await rollout.start_weight_update("sync-1", snapshot.manifest, mutation())
    with pytest.raises(DeadlineError):
        await rollout.update_weights("sync-1", source, mutation(deadline_s=0.3))
    assert len(await answers(rollout)) == 4
