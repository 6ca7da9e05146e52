"""A LoRA adapter alone, from trainer to engine: the answers of merged weights for a fraction of the bytes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from argosy.modeling.loading import ModelSource
from argosy.roles.policy import Policy
from argosy.roles.rollout import Rollout
from argosy.trainer.backends import make_backend
from argosy.trainer.core import Trainer
from argosy.trainer.options import LoraOptions, OptimizerOptions, TrainerOptions
from argosy.trainer.schedule import Schedule
from argosy.types.errors import NotFoundError, StateError, UnavailableError, WeightsRefusedError
from argosy.types.ids import PolicyVersion
from argosy.types.records import LossConfig, UpdateConfig, WeightsForm, WeightsManifest
from argosy.weightsync import Snapshot, manifest_digest
from argosy.weightsync.adapter import MISSING_BASE, merge
from contract.batches import batch_of
from contract.forms import Form, MakeRollout, collect, mutation, request

LORA = LoraOptions(rank=4, alpha=8)
ASKED = [request(position, temperature=0.0) for position in range(3)]

MakeLora = Callable[..., Trainer]


@pytest.fixture
async def make_lora(tiny: Path) -> AsyncIterator[MakeLora]:
    made: list[Trainer] = []

    def make(lora: LoraOptions | None = LORA, **fields: Any) -> Trainer:
        options = TrainerOptions(
            model=ModelSource(path=str(tiny)),
            lora=lora,
            optimizer=OptimizerOptions(schedule=Schedule(0.05)),
            threads=1,
            **fields,
        )
        made.append(Trainer(options, make_backend))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


async def train(policy: Policy, steps: int = 1) -> None:
    for _ in range(steps):
        await policy.update(batch_of(), UpdateConfig(LossConfig(), mini_batch_size=9), mutation())


async def publish(policy: Policy, step: int, form: WeightsForm = WeightsForm.ADAPTER) -> WeightsManifest:
    return await policy.publish_weights("main", step, mutation(), form=form)


async def sync(rollout: Rollout, policy: Policy, manifest: WeightsManifest, sync_id: str = "sync-1") -> PolicyVersion:
    await rollout.init_weight_transfer("stream", mutation())
    await rollout.start_weight_update(sync_id, manifest, mutation())
    await rollout.update_weights(sync_id, policy.weight_source(), mutation())
    return await rollout.finish_weight_update(sync_id, mutation())


async def answers(rollout: Rollout) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    found = await collect(rollout, ASKED)
    return [(found[one.key].token_ids, tuple(found[one.key].log_probs)) for one in ASKED]


def size_of(manifest: WeightsManifest) -> int:
    return sum(spec.size_bytes for spec in manifest.tensors if not spec.tied_to)


async def test_an_adapter_alone_gives_exactly_the_answers_of_merged_weights(
    form: Form, make_rollout: MakeRollout, make_lora: MakeLora
) -> None:
    """Step after step. The engine starts from the same files, so its own weights are the base."""
    policy = await form.policy(make_lora())
    alone, whole = await form.rollout(make_rollout()), await form.rollout(make_rollout())
    first = await answers(alone)
    for step in (1, 2):
        await train(policy)
        adapter = await publish(policy, step)
        assert adapter.adapter is not None
        assert (adapter.adapter.rank, adapter.adapter.alpha) == (4, 8)
        assert await sync(alone, policy, adapter, f"sync-{step}") == adapter.version
        merged = await publish(policy, step, WeightsForm.MERGED)
        await sync(whole, policy, merged, f"sync-{step}")
        assert await answers(alone) == await answers(whole) != first
        assert (await alone.status()).version == adapter.version != merged.version
        assert size_of(adapter) < size_of(merged) / 5


async def test_a_server_with_other_weights_says_that_it_needs_the_base_and_takes_it(
    form: Form, make_rollout: MakeRollout, make_lora: MakeLora, other_tiny: Path
) -> None:
    policy = await form.policy(make_lora())
    rollout, expected = await form.rollout(make_rollout(other_tiny)), await form.rollout(make_rollout())
    await train(policy)
    adapter = await publish(policy, 1)
    before = await answers(rollout)
    with pytest.raises(NotFoundError, match="send its base first") as refused:
        await sync(rollout, policy, adapter)
    assert refused.value.metadata["missing"] == MISSING_BASE
    assert await answers(rollout) == before
    base = await publish(policy, 1, WeightsForm.BASE)
    assert base.version.digest == adapter.adapter.base.digest if adapter.adapter else False
    await sync(rollout, policy, base, "sync-1-base")
    again = await publish(policy, 1)
    assert again == adapter
    await sync(rollout, policy, again)
    await sync(expected, policy, again)
    assert await answers(rollout) == await answers(expected) != before


async def test_a_newcomer_without_weights_needs_the_base(
    form: Form, make_rollout: MakeRollout, make_lora: MakeLora
) -> None:
    policy, rollout = await form.policy(make_lora()), await form.rollout(make_rollout(start_stale=True))
    adapter = await publish(policy, 0)
    with pytest.raises(NotFoundError, match="holds nothing"):
        await sync(rollout, policy, adapter)


async def test_whole_weights_end_the_adapter(form: Form, make_rollout: MakeRollout, make_lora: MakeLora) -> None:
    """Adapter, then merged weights, then an adapter again: the merged weights are no base of it."""
    policy, rollout = await form.policy(make_lora()), await form.rollout(make_rollout())
    await train(policy)
    await sync(rollout, policy, await publish(policy, 1), "sync-1")
    await sync(rollout, policy, await publish(policy, 1, WeightsForm.MERGED), "sync-2")
    merged = await answers(rollout)
    with pytest.raises(NotFoundError, match="send its base first"):
        await sync(rollout, policy, await publish(policy, 1), "sync-3")
    assert await answers(rollout) == merged


async def test_no_adapter_no_such_forms(form: Form, make_lora: MakeLora) -> None:
    policy = await form.policy(make_lora(lora=None))
    for kind in (WeightsForm.ADAPTER, WeightsForm.BASE):
        with pytest.raises(StateError, match="adapter_only=off"):
            await publish(policy, 0, kind)


async def test_the_version_covers_base_and_adapter(make_lora: MakeLora) -> None:
    """Equal adapters are equal versions; another base, rank, alpha or set of modules is another."""
    trainer = make_lora()
    manifest = await publish(trainer, 1)
    spec = manifest.adapter
    assert spec is not None
    changes = [
        {"base": PolicyVersion("main", 0, "0" * 64)},
        {"rank": 8},
        {"alpha": 9.0},
        {"target_modules": spec.target_modules[1:]},
    ]
    digests = {manifest_digest(manifest.tensors, dataclasses.replace(spec, **change)) for change in changes}  # type: ignore[arg-type]
    assert len(digests) == 4
    assert manifest.version.digest not in digests
    again = dataclasses.replace(spec, base=dataclasses.replace(spec.base, lineage="other", step=7))
    assert manifest_digest(manifest.tensors, again) == manifest.version.digest


@pytest.mark.parametrize("fault", ["module", "shape", "missing", "unknown", "alpha"])
async def test_d10_an_adapter_that_does_not_fit_is_refused_before_its_bytes(
    make_rollout: MakeRollout, make_lora: MakeLora, fault: str
) -> None:
    trainer, rollout = make_lora(), make_rollout()
    good = await publish(trainer, 1)
    assert good.adapter is not None
    tensors = dict(trainer.weight_source().published().tensors())
    spec = good.adapter
    name = f"{spec.target_modules[0]}.lora_A.weight"
    if fault == "module":
        spec = dataclasses.replace(spec, target_modules=(*spec.target_modules, "model.layers.9.self_attn.q_proj"))
    elif fault == "shape":
        tensors[name] = tensors[name][:, 1:].contiguous()
    elif fault == "missing":
        del tensors[name]
    elif fault == "unknown":
        tensors["model.norm.weight"] = torch.ones(64)
    manifest = Snapshot.freeze("main", 1, tensors, adapter=spec).manifest
    if fault == "alpha":
        manifest = dataclasses.replace(manifest, adapter=dataclasses.replace(spec, alpha=3.0))
    before = await answers(rollout)
    words = {"module": "layers.9", "unknown": "none of the adapter", "alpha": "digest"}.get(fault, "lora_A")
    with pytest.raises(WeightsRefusedError, match=words):
        await rollout.start_weight_update("sync-1", manifest, mutation())
    assert await answers(rollout) == before


async def test_an_engine_that_can_not_says_so(make_rollout: MakeRollout, make_lora: MakeLora) -> None:
    from argosy.rollout.adapters import Adapters

    rollout = make_rollout()
    manifest = await publish(make_lora(), 1)
    assert manifest.adapter is not None

    class Without:
        capabilities = dataclasses.replace(rollout.engine.capabilities, adapter_sync=False)

    with pytest.raises(WeightsRefusedError, match="adapter_only=off"):
        Adapters(Without()).check(manifest.adapter)  # type: ignore[arg-type]


async def test_modules_that_the_next_adapter_lacks_get_their_own_weights_back(
    make_rollout: MakeRollout, make_lora: MakeLora
) -> None:
    attention = make_lora(LoraOptions(rank=4, alpha=8, target_modules=("q_proj", "v_proj")))
    mlp = make_lora(LoraOptions(rank=2, alpha=8, target_modules=("up_proj",)))
    rollout, fresh = make_rollout(), make_rollout()
    for trainer in (attention, mlp):
        await train(trainer)
    await sync(rollout, attention, await publish(attention, 1), "sync-1")
    await sync(rollout, mlp, await publish(mlp, 2), "sync-2")
    await sync(fresh, mlp, await publish(mlp, 2), "sync-2")
    assert await answers(rollout) == await answers(fresh)


async def test_a_server_with_an_adapter_passes_on_the_adapter_and_no_merged_weights(
    make_rollout: MakeRollout, make_lora: MakeLora
) -> None:
    trainer, rollout = make_lora(), make_rollout()
    published = await publish(trainer, 1)
    await sync(rollout, trainer, published)
    held = await rollout.weight_source().get_manifest()
    assert held.adapter is not None
    assert held.tensors == published.tensors


async def test_it_still_does_not_after_a_swap_that_the_engine_refused(
    make_rollout: MakeRollout, make_lora: MakeLora, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, rollout = make_lora(), make_rollout()
    version = await sync(rollout, trainer, await publish(trainer, 1))
    await train(trainer)

    async def refuses(*args: object) -> None:
        raise UnavailableError("busy")

    monkeypatch.setattr(rollout.engine, "swap_weights", refuses)
    with pytest.raises(UnavailableError):
        await sync(rollout, trainer, await publish(trainer, 2), "sync-2")
    assert rollout.engine.version == version
    with pytest.raises(NotFoundError, match="ask the trainer"):
        await rollout.weight_source().get_manifest()


async def test_merging_leaves_the_event_loop_free(
    make_rollout: MakeRollout, make_lora: MakeLora, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes seconds for a large model, in which a server has to answer its health checks and streams."""
    from argosy.rollout import adapters

    trainer, rollout = make_lora(), make_rollout()
    threads = set()
    for name in ("merge", "_copies"):
        work = getattr(adapters, name)

        def watched(*args: Any, work: Any = work) -> Any:
            threads.add(threading.get_ident())
            return work(*args)

        monkeypatch.setattr(adapters, name, watched)
    await sync(rollout, trainer, await publish(trainer, 1))
    assert threads
    assert threading.get_ident() not in threads


async def test_peft_merges_alike(tmp_path: Path, tiny: Path, make_lora: MakeLora) -> None:
    """Our merge against peft's own, of the adapter in peft's files."""
    import peft
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    trainer = make_lora()
    await train(trainer)
    manifest = await publish(trainer, 1)
    assert manifest.adapter is not None
    tensors = trainer.weight_source().published().tensors()
    shape = peft.LoraConfig(
        r=manifest.adapter.rank,
        lora_alpha=int(manifest.adapter.alpha),
        target_modules=list(manifest.adapter.target_modules),
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    shape.save_pretrained(str(tmp_path / "adapter"))
    named = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, tmp_path / "adapter" / "adapter_model.safetensors", metadata={"format": "pt"})
    base: Any = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    weights = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    ours = weights | merge(manifest.adapter, tensors, weights)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload().state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    assert any(not torch.equal(ours[name], tensor) for name, tensor in weights.items())


async def test_a_bfloat16_base_is_merged_as_the_trainer_merges_and_casts(make_lora: MakeLora) -> None:
    """One rounding: what an engine in bf16 computes with is what merged weights in bf16 would have been."""
    trainer = make_lora(publish_dtype="bfloat16")
    base = await publish(trainer, 0, WeightsForm.BASE)
    held = {name: tensor.clone() for name, tensor in trainer.weight_source().published().tensors().items()}
    assert base.tensors[0].dtype == "bfloat16"
    await train(trainer)
    adapter = await publish(trainer, 1)
    assert adapter.adapter is not None
    ours = merge(adapter.adapter, trainer.weight_source().published().tensors(), held)
    assert {tensor.dtype for tensor in ours.values()} == {torch.bfloat16}
    wide = {name: tensor.float() for name, tensor in held.items()}
    exact = merge(adapter.adapter, trainer.weight_source().published().tensors(), wide)
    assert all(torch.equal(ours[name], tensor.bfloat16()) for name, tensor in exact.items())


async def test_a_trainer_keeps_no_whole_model_beside_an_adapter_for_long(make_lora: MakeLora) -> None:
    """The base is there after the first adapter, for servers that lack it, and gone after the next."""
    trainer = make_lora()
    source = trainer.weight_source()
    await publish(trainer, 0, WeightsForm.MERGED)
    assert set(source._kept) == {WeightsForm.MERGED}
    await publish(trainer, 0)
    assert set(source._kept) == {WeightsForm.BASE, WeightsForm.ADAPTER}
    await train(trainer)
    await publish(trainer, 1)
    assert set(source._kept) == {WeightsForm.ADAPTER}
    base = await publish(trainer, 1, WeightsForm.BASE)
    assert [chunk async for chunk in source.stream_weights(base.version)]
    adapter = await publish(trainer, 1)
    assert source.version == adapter.version
    assert adapter.adapter is not None
    assert adapter.adapter.base == base.version
