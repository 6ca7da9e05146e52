"""argosy.weight_sync.*: by which way weights go, and what of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from argosy.config import Config
from argosy.controller.context import RunContext, Services
from argosy.controller.ledger import Ledger
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.sync import publish_and_sync
from argosy.controller.stages.weights_form import choose_form, publish
from argosy.membership.memory import MemoryMembership
from argosy.types.errors import StateError
from argosy.types.records import RolloutStatus, WeightsForm
from argosy.weightsync.chain import read_links
from support.training import mutation
from unit.config.effects.recorded import run_recorded
from unit.config.effects.support import Core, Cores, problems


async def publish_twice(core: Core) -> Core:
    """Two versions with the same weights, each offered through the disk."""
    for step in (0, 1):
        await core.publish_weights("l0", step, mutation())
        await core.open_transfer("disk", f"sync-{step}", 1, mutation())
    return core


async def test_transport(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "auto" is shared memory on one host, the stream between two."""
    assert set((await run_recorded(job, monkeypatch)).transports) == {"shared_memory"}
    apart = job.with_values({"trainer.default_local_dir": f"{job.run_folder}-apart"})
    assert set((await run_recorded(apart, monkeypatch, rollout_host="two")).transports) == {"stream"}
    folder = f"{job.run_folder}-disk"
    changed = job.with_values({"argosy.weight_sync.transport": "disk", "trainer.default_local_dir": folder})
    assert set((await run_recorded(changed, monkeypatch)).transports) == {"disk"}


async def test_disk_path(job: Config, cores: Cores, tmp_path: Path) -> None:
    """null is a folder of the run."""
    await publish_twice(cores("trainer", job))
    assert read_links(job.run_folder / "weights")
    changed = job.with_values({"argosy.weight_sync.disk_path": str(tmp_path / "elsewhere")})
    await publish_twice(cores("trainer", changed))
    assert read_links(tmp_path / "elsewhere")


@pytest.mark.parametrize(("delta", "transport", "kind"), [
    ("auto", "auto", "base"), ("auto", "disk", "delta"), ("xor", "auto", "delta"), ("off", "disk", "base"),
])  # fmt: skip
async def test_delta(job: Config, cores: Cores, delta: str, transport: str, kind: str) -> None:
    """ "auto" makes deltas for the disk alone."""
    changed = job.with_values({"argosy.weight_sync.delta": delta, "argosy.weight_sync.transport": transport})
    core = await publish_twice(cores("trainer", changed))
    assert read_links(changed.run_folder / "weights")[-1].kind == kind
    assert (core.weight_source().snapshot.delta is not None) == (kind == "delta")


async def test_disk_base_every(job: Config, cores: Cores) -> None:
    for every, kinds in ((8, ["base", "delta"]), (1, ["base", "delta", "base"])):
        changed = job.with_values({
            "argosy.weight_sync.disk_base_every": every,
            "argosy.weight_sync.delta": "xor",
            "trainer.default_local_dir": f"{job.run_folder}-{every}",
        })  # fmt: skip
        await publish_twice(cores("trainer", changed))
        assert [link.kind for link in read_links(changed.run_folder / "weights")] == kinds


async def test_disk_keep(job: Config, cores: Cores) -> None:
    """Without deltas, each version is whole and needs no other."""
    for keep, count in ((2, 2), (1, 1)):
        changed = job.with_values({
            "argosy.weight_sync.disk_keep": keep, "trainer.default_local_dir": f"{job.run_folder}-{keep}",
        })  # fmt: skip
        await publish_twice(cores("trainer", changed))
        assert len(read_links(changed.run_folder / "weights")) == count


class _Server:
    """A rollout server that says whether it takes adapters."""

    def __init__(self, takes: str) -> None:
        self._takes = takes

    async def status(self) -> RolloutStatus:
        return RolloutStatus(None, "ready", 0, 0, 8, 0, 0, 64, capabilities={"adapter_sync": self._takes})


async def form_of(config: Config, folder: Path, *takes: str) -> WeightsForm:
    rollouts = {f"rollout-{number}": _Server(text) for number, text in enumerate(takes)}
    services = Services(rollouts=rollouts, reward=None, policy=None, reference=None)  # type: ignore[arg-type]
    ledger = Ledger(folder / "ledger", 1)
    try:
        return await choose_form(RunContext(config, "run", 1, services, ledger, MemoryMembership()), sorted(rollouts))
    finally:
        ledger.close()


async def test_adapter_only(job: Config, tmp_path: Path) -> None:
    """ "auto" asks the engines; without LoRA, or with weights that are dropped in sleep, all weights go."""
    lora = job.with_values({"actor_rollout_ref.model.lora_rank": 4})
    assert await form_of(lora, tmp_path, "true", "true") is WeightsForm.ADAPTER
    assert await form_of(lora, tmp_path, "true", "true", "false") is WeightsForm.MERGED
    assert await form_of(job, tmp_path, "true") is WeightsForm.MERGED
    off = lora.with_values({"argosy.weight_sync.adapter_only": "off"})
    assert await form_of(off, tmp_path, "true") is WeightsForm.MERGED
    sleepy = lora.with_values({"argosy.colocated": True, "argosy.sleep_level": 2})
    assert await form_of(sleepy, tmp_path, "true") is WeightsForm.MERGED
    on = lora.with_values({"argosy.weight_sync.adapter_only": "on"})
    assert await form_of(on, tmp_path, "false") is WeightsForm.ADAPTER
    assert problems(on) == ""
    assert "lora_rank=0" in problems(job.with_values({"argosy.weight_sync.adapter_only": "on"}))
    assert "whole weights" in problems(on.with_values({"actor_rollout_ref.rollout.name": "sglang"}))


async def test_streams(job: Config, cores: Cores) -> None:
    core = cores("trainer", job.with_values({"argosy.weight_sync.streams": 3}))
    await core.publish_weights("l0", 0, mutation())
    (offer,) = await core.open_transfer("stream", "s", 1, mutation())
    assert offer.options["streams"] == "3"


async def test_fan_out(job: Config, cores: Cores, tmp_path: Path) -> None:
    """How many of four servers the trainer itself sends to, and how far the last one is from it."""
    rollouts = {f"rollout-{number}": cores("rollout", job) for number in range(4)}
    trainer = cores("trainer", job)
    for step, (fan_out, delta, sent, hops) in enumerate([
        (2, "off", 2, 2), (1, "off", 1, 3), (0, "off", 4, 1), (2, "xor", 4, 1),
    ]):  # fmt: skip
        changed = job.with_values({
            "argosy.weight_sync.transport": "stream",
            "argosy.weight_sync.fan_out": fan_out,
            "argosy.weight_sync.delta": delta,
        })  # fmt: skip
        ledger = Ledger(tmp_path / f"ledger-{step}", 1)
        services = Services(rollouts=rollouts, reward=None, policy=trainer, reference=None)  # type: ignore[arg-type]
        ctx = RunContext(changed, "run", 1, services, ledger, MemoryMembership(), lineage=f"l{step}")
        version = await publish_and_sync(ctx, RolloutStage(ctx), 0)
        ledger.close()
        assert {(await core.status()).version for core in rollouts.values()} == {version}
        assert ctx.measured["sync/trainer_mb"] == pytest.approx(sent * ctx.measured["sync/manifest_mb"])
        assert ctx.measured["sync/hops"] == hops


async def test_collective(job: Config, cores: Cores) -> None:
    """Buckets, backend and groups as they are set; a receiver that never comes holds nothing up."""
    for broadcast, places in ((True, [(1, 3), (2, 3)]), (False, [(1, 2), (1, 2)])):
        changed = job.with_values({
            "argosy.weight_sync.bucket_mb": 3,
            "argosy.weight_sync.collective_backend": "gloo",
            "argosy.weight_sync.collective_broadcast": broadcast,
        })  # fmt: skip
        core = cores("trainer", changed)
        await core.publish_weights("l0", 0, mutation())
        offers = await core.open_transfer("collective", "s", 2, mutation())
        await core.close_transfer("s", mutation())
        assert [(offer.rank, offer.world_size) for offer in offers] == places
        assert {(offer.options["bucket_bytes"], offer.options["backend"]) for offer in offers} == {("3145728", "gloo")}


async def test_an_adapter_that_cannot_go_alone_goes_merged(job: Config, cores: Cores, tmp_path: Path) -> None:
    """Modules of two ranks can't be told by one rank and alpha: "auto" sends merged weights, "on" says why not."""
    base = AutoModelForCausalLM.from_pretrained(job.actor_rollout_ref.model.path)
    shape = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], rank_pattern={"v_proj": 2})
    get_peft_model(base, shape).save_pretrained(tmp_path / "mixed")
    mixed = job.with_values({
        "actor_rollout_ref.model.lora_adapter_path": str(tmp_path / "mixed"),
        "actor_rollout_ref.model.lora_rank": 4,
        "actor_rollout_ref.model.lora_alpha": 8,
    })  # fmt: skip
    services = Services(rollouts={}, reward=None, policy=cores("trainer", mixed), reference=None)  # type: ignore[arg-type]
    ledger = Ledger(tmp_path / "ledger", 1)
    ctx = RunContext(mixed, "run", 1, services, ledger, MemoryMembership())
    manifest = await publish(ctx, 0, WeightsForm.ADAPTER)
    assert manifest.adapter is None
    assert len(manifest.tensors) > 2, "the whole model"
    ctx.config = mixed.with_values({"argosy.weight_sync.adapter_only": "on"})
    with pytest.raises(StateError, match="adapter_only=off"):
        await publish(ctx, 0, WeightsForm.ADAPTER, "again")
    ledger.close()
