"""Weights in four phases: cases D1, D2 and D10, and a server that passes its weights on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from argosy.modeling.tiny import save_tiny_model
from argosy.roles.weights import SOURCE, WeightSource
from argosy.rollout import passing
from argosy.rollout.core import HfRollout
from argosy.types.errors import (
    ArgosyError,
    CorruptDataError,
    DeadlineError,
    InvalidInputError,
    NotFoundError,
    StateError,
    UnavailableError,
    WeightsRefusedError,
)
from argosy.types.ids import PolicyVersion
from argosy.types.records import Completion, FinishReason, TensorSpec, WeightChunk, WeightsManifest
from argosy.weightsync import Snapshot, find_tied
from unit.rollout.support import CTX, PROMPT, Open, answers, loop_of, plain_logits, request, until_sampled


def state_of(path: Path) -> dict[str, Tensor]:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    state: dict[str, Tensor] = model.state_dict()
    return state


def snapshot_of(path: Path, step: int = 1) -> Snapshot:
    state = state_of(path)
    return Snapshot.freeze("main", step, state, find_tied(state))


async def sync(rollout: HfRollout, source: WeightSource, sync_id: str = "s1") -> PolicyVersion:
    await rollout.init_weight_transfer("stream", CTX)
    await rollout.start_weight_update(sync_id, await source.get_manifest(), CTX)
    await rollout.update_weights(sync_id, source, CTX)
    return await rollout.finish_weight_update(sync_id, CTX)


def check(path: Path, completion: Completion) -> None:
    log_probs = plain_logits(path, PROMPT, completion.token_ids).log_softmax(-1)
    expected = log_probs.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0].tolist()
    assert completion.log_probs == pytest.approx(expected, abs=5e-5)


async def test_d1_no_old_keys_and_values_after_an_update(open_rollout: Open, tiny: Path, other: Path) -> None:
    rollout = await open_rollout()
    asked = request(temperature=0.0)
    [first] = await answers(rollout, [asked])
    assert (await rollout.status()).cached_token_count > 0
    version = await sync(rollout, snapshot_of(other))
    assert (await rollout.status()).cached_token_count == 0
    assert (await rollout.status()).version == version
    [second] = await answers(rollout, [asked])
    [fresh] = await answers(await open_rollout(other), [asked])
    assert second.token_ids == fresh.token_ids != first.token_ids
    assert second.log_probs == pytest.approx(fresh.log_probs, abs=1e-5)
    assert second.cached_prompt_tokens == 0
    assert [run.version for run in second.versions] == [version]


async def test_d1_a_sample_in_flight_tells_its_versions(open_rollout: Open, tiny: Path, other: Path) -> None:
    rollout = await open_rollout()
    old = (await rollout.status()).version
    work = asyncio.create_task(answers(rollout, [request(k, max_tokens=200) for k in range(3)]))
    await until_sampled(rollout, 30)
    version = await sync(rollout, snapshot_of(other))
    for done in await work:
        assert [run.version for run in done.versions] == [old, version]
        count = done.versions[0].token_count
        assert count + done.versions[1].token_count == len(done.token_ids) == 200
        before = plain_logits(tiny, PROMPT, done.token_ids).log_softmax(-1)
        after = plain_logits(other, PROMPT, done.token_ids).log_softmax(-1)
        for index, (token, log_prob) in enumerate(zip(done.token_ids, done.log_probs, strict=True)):
            model = before if index < count else after
            assert log_prob == pytest.approx(model[index, token].item(), abs=5e-5)


@pytest.mark.parametrize("tied", [True, False])
async def test_d2_head_and_embedding_after_a_sync(open_rollout: Open, tmp_path: Path, tied: bool) -> None:
    old = save_tiny_model(tmp_path / "old", seed=3, tied=tied, weight_scale=4.0)
    new = save_tiny_model(tmp_path / "new", seed=4, tied=tied, weight_scale=4.0)
    rollout = await open_rollout(old)
    await sync(rollout, snapshot_of(new))
    [done] = await answers(rollout, [request(max_tokens=20)])
    check(new, done)


@pytest.mark.parametrize("listed", ["omitted", "tied", "own bytes"])
async def test_d2_tied_with_a_redundant_head(open_rollout: Open, tiny: Path, other: Path, listed: str) -> None:
    state = dict(state_of(other))
    if listed == "omitted":
        del state["lm_head.weight"]
    if listed == "own bytes":
        state["lm_head.weight"] = state["lm_head.weight"].clone()
    rollout = await open_rollout()
    await sync(rollout, Snapshot.freeze("main", 1, state, find_tied(state)))
    [done] = await answers(rollout, [request()])
    check(other, done)


def renamed(specs: dict[str, TensorSpec]) -> dict[str, TensorSpec]:
    name = next(iter(specs))
    return specs | {name: replace(specs[name], name=name + "x")}


def changed(**fields: Any) -> Any:
    def change(specs: dict[str, TensorSpec]) -> dict[str, TensorSpec]:
        name = "model.norm.weight"
        return specs | {name: replace(specs[name], **fields)}

    return change


def shortened(specs: dict[str, TensorSpec]) -> dict[str, TensorSpec]:
    return {name: spec for name, spec in specs.items() if name != "model.norm.weight"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed, "unknown"),
        (changed(shape=(65,)), "shape"),
        (changed(dtype="bfloat16"), "dtype"),
        (shortened, "missing"),
    ],
)
async def test_d10_a_set_that_does_not_fit_is_refused_whole(
    open_rollout: Open, other: Path, change: Any, message: str
) -> None:
    from argosy.weightsync.manifest import make_manifest

    rollout = await open_rollout()
    before = await rollout.status()
    [first] = await answers(rollout, [request()])
    manifest = snapshot_of(other).manifest
    wrong = make_manifest("main", 1, change({spec.name: spec for spec in manifest.tensors}).values())
    with pytest.raises(WeightsRefusedError, match=message):
        await rollout.start_weight_update("s", wrong, CTX)
    with pytest.raises(NotFoundError):
        await rollout.update_weights("s", snapshot_of(other), CTX)
    assert (await rollout.status()).version == before.version
    assert (await answers(rollout, [request()]))[0].log_probs == first.log_probs


class Faulty:
    """A sender that dies half way, or whose bytes are not what it announced."""

    def __init__(self, snapshot: Snapshot, fault: str) -> None:
        self._snapshot = snapshot
        self._fault = fault

    @property
    def address(self) -> str:
        return ""

    async def get_manifest(self) -> WeightsManifest:
        return await self._snapshot.get_manifest()

    async def stream_weights(
        self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
    ) -> AsyncIterator[WeightChunk]:
        count = 0
        async for chunk in self._snapshot.stream_weights(version, names):
            count += 1
            if count == 8 and self._fault == "dies":
                raise UnavailableError("the trainer is gone")
            if count == 8 and self._fault == "ends":
                return
            if count == 8 and self._fault == "flips":
                chunk = replace(chunk, data=bytes([chunk.data[0] ^ 1]) + chunk.data[1:])
            yield chunk


@pytest.mark.parametrize(
    ("fault", "error"), [("dies", UnavailableError), ("ends", CorruptDataError), ("flips", CorruptDataError)]
)
async def test_d10_half_a_set_changes_nothing(
    open_rollout: Open, other: Path, fault: str, error: type[ArgosyError]
) -> None:
    rollout = await open_rollout()
    version = (await rollout.status()).version
    [first] = await answers(rollout, [request()])
    snapshot = snapshot_of(other)
    await rollout.start_weight_update("s", snapshot.manifest, CTX)
    with pytest.raises(error):
        await rollout.update_weights("s", Faulty(snapshot, fault), CTX)
    with pytest.raises(StateError, match="update_weights"):
        await rollout.finish_weight_update("s", CTX)
    assert (await rollout.status()).version == version
    assert (await answers(rollout, [request()]))[0].log_probs == first.log_probs
    # The same sync can be tried again with a sender that lives.
    await rollout.update_weights("s", snapshot, CTX)
    assert await rollout.finish_weight_update("s", CTX) == snapshot.manifest.version
    check(other, (await answers(rollout, [request()]))[0])


async def test_a_swap_that_fails_half_way_takes_the_server_out(
    open_rollout: Open, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = await open_rollout()
    work = asyncio.create_task(answers(rollout, [request(5, max_tokens=200)]))
    await until_sampled(rollout, 3)
    snapshot = snapshot_of(other)
    await rollout.start_weight_update("s", snapshot.manifest, CTX)
    await rollout.update_weights("s", snapshot, CTX)
    with monkeypatch.context() as patch:

        def broken(*args: object, **kwargs: object) -> None:
            raise RuntimeError("device lost")

        patch.setattr(Tensor, "copy_", broken)
        with pytest.raises(RuntimeError, match="device lost"):
            await rollout.finish_weight_update("s", CTX)
    assert (await rollout.status()).state == "stale"
    assert (await rollout.status()).version is None
    with pytest.raises(StateError, match="no current weights"):
        await answers(rollout, [request()])
    [failed] = await work
    assert failed.finish_reason is FinishReason.FAILED
    await sync(rollout, snapshot, "again")
    check(other, (await answers(rollout, [request()]))[0])


async def test_d11_a_newcomer_answers_nothing_before_its_weights(open_rollout: Open, other: Path) -> None:
    rollout = await open_rollout(start_stale=True)
    status = await rollout.status()
    assert (status.state, status.version) == ("stale", None)
    with pytest.raises(StateError, match="no current weights"):
        await answers(rollout, [request()])
    with pytest.raises(NotFoundError):
        await rollout.weight_source().get_manifest()
    version = await sync(rollout, snapshot_of(other, step=5))
    [done] = await answers(rollout, [request()])
    assert [run.version for run in done.versions] == [version]
    assert version.step == 5


async def test_repeated_phases_change_nothing(open_rollout: Open, other: Path) -> None:
    rollout = await open_rollout()
    snapshot = snapshot_of(other)
    for _ in range(2):
        await rollout.start_weight_update("s", snapshot.manifest, CTX)
    for _ in range(2):
        await rollout.update_weights("s", snapshot, CTX)
    version = await rollout.finish_weight_update("s", CTX)
    await rollout.start_weight_update("s", snapshot.manifest, CTX)
    await rollout.update_weights("s", snapshot, CTX)
    assert await rollout.finish_weight_update("s", CTX) == version
    with pytest.raises(NotFoundError):
        await rollout.finish_weight_update("unknown", CTX)
    with pytest.raises(InvalidInputError):
        await rollout.init_weight_transfer("pigeon", CTX)


async def test_a_new_sync_replaces_one_whose_sender_went_away(open_rollout: Open, tiny: Path, other: Path) -> None:
    rollout = await open_rollout()
    await rollout.start_weight_update("lost", snapshot_of(tiny, step=3).manifest, CTX)
    version = await sync(rollout, snapshot_of(other), "next")
    assert (await rollout.status()).version == version
    with pytest.raises(NotFoundError):
        await rollout.finish_weight_update("lost", CTX)


async def test_no_other_update_starts_while_one_is_swapped_in(open_rollout: Open, tiny: Path, other: Path) -> None:
    """The staged bytes are the next update's buffer: it must not be filled while the engine still copies from it."""
    rollout = await open_rollout()
    snapshot = snapshot_of(other)
    await rollout.start_weight_update("s", snapshot.manifest, CTX)
    await rollout.update_weights("s", snapshot, CTX)
    engine_may_go = threading.Event()
    loop_of(rollout).call(engine_may_go.wait)
    finish = asyncio.create_task(rollout.finish_weight_update("s", CTX))
    await asyncio.sleep(0)
    following = snapshot_of(tiny, step=2)
    with pytest.raises(StateError, match="being swapped in"):
        await rollout.start_weight_update("next", following.manifest, CTX)
    finish.cancel()  # a caller that gives up doesn't end the swap
    with pytest.raises(asyncio.CancelledError):
        await finish
    with pytest.raises(StateError, match="being swapped in"):
        await rollout.start_weight_update("next", following.manifest, CTX)
    engine_may_go.set()
    assert await rollout.finish_weight_update("s", CTX) == snapshot.manifest.version
    check(other, (await answers(rollout, [request()]))[0])
    assert await sync(rollout, following, "next") == following.manifest.version
    check(tiny, (await answers(rollout, [request()]))[0])


async def test_a_request_that_meets_a_swap_waits_for_it(
    open_rollout: Open, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the run's end: the engine serves no version while it is copied over, and does a moment later."""
    rollout = await open_rollout()
    snapshot = snapshot_of(other)
    await rollout.start_weight_update("s", snapshot.manifest, CTX)
    await rollout.update_weights("s", snapshot, CTX)
    copying, may_go = threading.Event(), threading.Event()
    copy = Tensor.copy_

    def slow(self: Tensor, *args: Any) -> Tensor:
        copying.set()
        may_go.wait(20)
        return copy(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "copy_", slow)
        finish = asyncio.create_task(rollout.finish_weight_update("s", CTX))
        await asyncio.to_thread(copying.wait)
        assert rollout.engine.version is None
        asked = asyncio.create_task(answers(rollout, [request()]))
        with pytest.raises(DeadlineError, match="1 samples"):
            _ = [c async for c in rollout.generate([request(1)], deadline_s=0.05)]
        assert not asked.done()
        may_go.set()
        version = await finish
    [done] = await asked
    assert [run.version for run in done.versions] == [version]


async def test_the_memory_of_a_receive_that_was_given_up_is_not_used_again(
    open_rollout: Open, tiny: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its thread or worker still writes must not meet the next update's bytes, which have been checked already."""
    from argosy.rollout.engines import updates
    from argosy.weightsync.staging import Staging
    from argosy.weightsync.transports import stream

    used: list[Any] = []

    class Watched:
        @staticmethod
        async def receive(offer: Any, source: Any, manifest: Any, staging: Staging, deadline_s: float) -> None:
            used.append(staging.buffer.memory)
            await stream.receive(offer, source, manifest, staging, deadline_s)

    class Hanging(Faulty):
        async def stream_weights(
            self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
        ) -> AsyncIterator[WeightChunk]:
            async for chunk in self._snapshot.stream_weights(version, names):
                yield chunk
                await asyncio.Event().wait()

    monkeypatch.setattr(updates, "load_transport", lambda name: Watched)
    rollout = await open_rollout()
    await sync(rollout, snapshot_of(tiny, step=1), "first")  # from now on there is memory to be used again
    lost, new = snapshot_of(tiny, step=2), snapshot_of(other, step=3)
    await rollout.start_weight_update("lost", lost.manifest, CTX)
    receiving = asyncio.create_task(rollout.update_weights("lost", Hanging(lost, ""), CTX))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(20):
        await rollout.start_weight_update("next", new.manifest, CTX)
        with pytest.raises(StateError, match="'lost' was replaced"):
            await receiving
    await rollout.update_weights("next", new, CTX)
    used[1][:] = 7  # a thread that comes late
    assert await rollout.finish_weight_update("next", CTX) == new.manifest.version
    check(other, (await answers(rollout, [request()]))[0])
    assert used[1] is used[0]
    await sync(rollout, snapshot_of(tiny, step=4), "fourth")
    assert used[3] is used[2], "memory of an update that went well is used again"


async def test_a_sync_whose_weights_are_lost_is_not_done(open_rollout: Open, other: Path) -> None:
    """The controller repeats it under the same name; the server must not answer that it has it already."""
    rollout = await open_rollout()
    version = await sync(rollout, snapshot_of(other))
    await rollout.sleep(2, CTX)
    await rollout.wake(CTX)
    assert rollout.engine.version is None
    assert await sync(rollout, snapshot_of(other)) == version
    assert rollout.engine.version == version
    check(other, (await answers(rollout, [request()]))[0])


async def test_a_sync_begun_anew_does_not_take_the_bytes_of_the_old_one(
    open_rollout: Open, tiny: Path, other: Path
) -> None:
    rollout = await open_rollout()
    old, new = snapshot_of(tiny, step=3), snapshot_of(other)
    await rollout.start_weight_update("s", old.manifest, CTX)

    class Slow(Faulty):
        async def stream_weights(
            self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
        ) -> AsyncIterator[WeightChunk]:
            async for chunk in old.stream_weights(version, names):
                yield chunk
            await rollout.start_weight_update("s", new.manifest, CTX)

    with pytest.raises(StateError, match="replaced"):
        await rollout.update_weights("s", Slow(old, ""), CTX)
    await rollout.update_weights("s", new, CTX)
    assert await rollout.finish_weight_update("s", CTX) == new.manifest.version
    check(other, (await answers(rollout, [request()]))[0])


async def test_a_server_passes_its_weights_on(open_rollout: Open, other: Path) -> None:
    first = await open_rollout()
    base = await first.weight_source().get_manifest()
    assert base.version == (await first.status()).version
    version = await sync(first, snapshot_of(other))
    newcomer = await open_rollout(start_stale=True)
    assert await sync(newcomer, first.weight_source()) == version
    check(other, (await answers(newcomer, [request()]))[0])
    with pytest.raises(NotFoundError):
        _ = [chunk async for chunk in first.weight_source().stream_weights(base.version)]


async def test_a_server_passes_on_what_it_has_staged_and_does_not_serve_yet(
    open_rollout: Open, tiny: Path, other: Path
) -> None:
    """Also while the next version comes in: what is being read is not written over."""
    first, second = await open_rollout(), await open_rollout(start_stale=True)
    old = (await first.status()).version
    snapshot = snapshot_of(other)
    version = snapshot.manifest.version
    await first.start_weight_update("s", snapshot.manifest, CTX)
    with pytest.raises(NotFoundError):
        await first.weights.manifest_of(version)
    await first.update_weights("s", snapshot, CTX)
    assert (await first.status()).version == old
    assert (await first.weight_source().get_manifest()).version == old
    assert await first.weights.manifest_of(version) == snapshot.manifest
    chunks = first.weights.stream_weights(version)
    begun = [bytes((await anext(chunks)).data)]
    await first.finish_weight_update("s", CTX)
    following = snapshot_of(tiny, step=2)
    assert await sync(first, following, "next") == following.manifest.version
    begun += [bytes(chunk.data) async for chunk in chunks]
    assert begun == [bytes(chunk.data) async for chunk in snapshot.stream_weights(version)]
    with pytest.raises(NotFoundError):
        _ = [chunk async for chunk in first.weights.stream_weights(version)]
    assert await sync(second, first.weight_source()) == following.manifest.version
    check(tiny, (await answers(second, [request()]))[0])


@pytest.mark.parametrize("fault", ["dies", "ends", "flips", "is silent"])
async def test_a_source_that_fails_is_named_as_what_failed(
    open_rollout: Open, other: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """So that whoever asked can name another source; a fault of the update itself is nobody else's."""
    monkeypatch.setattr(passing, "MIN_SILENCE_S", 0.1)
    rollout, snapshot = await open_rollout(), snapshot_of(other)

    class Silent(Faulty):
        async def stream_weights(
            self, version: PolicyVersion, names: tuple[str, ...] = (), *, base: PolicyVersion | None = None
        ) -> AsyncIterator[WeightChunk]:
            yield await anext(self._snapshot.stream_weights(version, names))
            await asyncio.Event().wait()

    await rollout.start_weight_update("s", snapshot.manifest, CTX)
    source = Silent(snapshot, "") if fault == "is silent" else Faulty(snapshot, fault)
    with pytest.raises((UnavailableError, CorruptDataError)) as caught:
        await rollout.update_weights("s", source, replace(CTX, deadline_s=0.4) if fault == "is silent" else CTX)
    assert caught.value.metadata[SOURCE] == "this process"
    with pytest.raises(NotFoundError) as unknown:
        await rollout.update_weights("unknown", snapshot, CTX)
    assert SOURCE not in unknown.value.metadata
    await rollout.update_weights("s", snapshot, CTX)
    assert await rollout.finish_weight_update("s", CTX) == snapshot.manifest.version


async def test_bfloat16_server_takes_float32_weights(open_rollout: Open, other: Path) -> None:
    """And passes them on as they came, for as long as it has them so."""
    rollout = await open_rollout(dtype="bfloat16")
    version = await sync(rollout, snapshot_of(other))
    assert (await rollout.weight_source().get_manifest()) == snapshot_of(other).manifest
    [done] = await answers(rollout, [request(temperature=0.0, max_tokens=4)])
    assert [run.version for run in done.versions] == [version]
    expected = plain_logits(other, PROMPT, done.token_ids).log_softmax(-1)
    for index, (token, log_prob) in enumerate(zip(done.token_ids, done.log_probs, strict=True)):
        assert log_prob == pytest.approx(expected[index, token].item(), abs=0.5)
    rollout.weights.release()
    with pytest.raises(NotFoundError, match="bfloat16"):
        await rollout.weight_source().get_manifest()
