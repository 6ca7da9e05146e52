"""The controller's sync over real cores: newcomers get what is under an adapter, damage on a disk is mended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.context import RunContext, Services
from argosy.controller.ledger import Ledger
from argosy.controller.stages import transfer
from argosy.controller.stages.rollout import RolloutStage
from argosy.controller.stages.sync import publish_and_sync
from argosy.membership.memory import MemoryMembership
from argosy.modeling.loading import ModelSource
from argosy.trainer.backends import make_backend
from argosy.trainer.core import Trainer
from argosy.trainer.options import LoraOptions, OptimizerOptions, TrainerOptions
from argosy.trainer.schedule import Schedule
from argosy.types.errors import DeadlineError, UnavailableError
from argosy.types.records import Completion, LossConfig, UpdateConfig
from argosy.weightsync.chain import read_links
from argosy.weightsync.transports import SendOptions
from contract.batches import batch_of
from contract.forms import MakeRollout, collect, mutation, request

ASKED = [request(position, temperature=0.0) for position in range(2)]


@pytest.fixture
def trainers() -> Iterator[list[Trainer]]:
    made: list[Trainer] = []
    yield made
    for trainer in made:
        trainer.close()


def make_trainer(trainers: list[Trainer], model: Path, **fields: Any) -> Trainer:
    optimizer = OptimizerOptions(schedule=Schedule(0.05))
    options = TrainerOptions(model=ModelSource(str(model)), optimizer=optimizer, threads=1, **fields)
    trainers.append(Trainer(options, make_backend))
    return trainers[-1]


def context(folder: Path, trainer: Trainer, rollouts: dict[str, Any], **keys: object) -> RunContext:
    config = Config().with_values({"argosy.rpc.deadline_s": 60.0, "argosy.weight_sync.transport": "stream", **keys})
    services = Services(rollouts, None, trainer, None)  # type: ignore[arg-type]
    return RunContext(config, "run", 1, services, Ledger(folder / "ledger", 1), MemoryMembership())


async def train(trainer: Trainer) -> None:
    await trainer.update(batch_of(), UpdateConfig(LossConfig(), mini_batch_size=9), mutation())


async def answers(core: Any) -> list[tuple[int, ...]]:
    found = await collect(core, ASKED)
    return [found[one.key].token_ids for one in ASKED]


async def test_d11_newcomers_get_the_base_and_then_the_adapter(
    make_rollout: MakeRollout, trainers: list[Trainer], tiny: Path, other_tiny: Path, tmp_path: Path
) -> None:
    """One server has the model's files, one other weights, one (from the second step on) none yet."""
    trainer = make_trainer(trainers, tiny, lora=LoraOptions(rank=4, alpha=8))
    rollouts = {"rollout-0": make_rollout(), "rollout-1": make_rollout(other_tiny)}
    ctx = context(tmp_path, trainer, rollouts, **{"actor_rollout_ref.model.lora_rank": 4})
    stage = RolloutStage(ctx)
    for step in (0, 1):
        version = await publish_and_sync(ctx, stage, step)
        assert [(await core.status()).version for core in rollouts.values()] == [version] * 2
        assert await answers(rollouts["rollout-0"]) == await answers(rollouts["rollout-1"])
        await train(trainer)
    alone = ctx.measured["sync/transferred_mb"] / 2
    assert alone == ctx.measured["sync/manifest_mb"]
    rollouts["rollout-2"] = make_rollout(start_stale=True)
    version = await publish_and_sync(ctx, stage, 2)
    assert [(await core.status()).version for core in rollouts.values()] == [version] * 3
    assert len({str(await answers(core)) for core in rollouts.values()}) == 1
    assert stage.usable == set(rollouts)


async def test_an_engine_without_adapters_makes_all_get_merged_weights(
    make_rollout: MakeRollout, trainers: list[Trainer], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    from argosy.rollout.engines.hf import adapter

    trainer = make_trainer(trainers, tiny, lora=LoraOptions(rank=4, alpha=8))
    rollouts = {"rollout-0": make_rollout()}
    without = dataclasses.replace(adapter.CAPABILITIES, adapter_sync=False)
    monkeypatch.setattr(adapter, "CAPABILITIES", without)
    ctx = context(tmp_path, trainer, rollouts, **{"actor_rollout_ref.model.lora_rank": 4})
    await publish_and_sync(ctx, RolloutStage(ctx), 0)
    assert (await trainer.weight_source().get_manifest()).adapter is None


async def test_a_damaged_delta_on_disk_costs_a_second_try(
    make_rollout: MakeRollout, trainers: list[Trainer], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "weights"
    trainer = make_trainer(trainers, tiny, send=SendOptions(folder=str(folder), delta=True))
    rollouts = {"rollout-0": make_rollout(), "rollout-1": make_rollout()}
    ctx = context(tmp_path, trainer, rollouts, **{"argosy.weight_sync.transport": "disk"})
    stage = RolloutStage(ctx)
    await publish_and_sync(ctx, stage, 0)
    await train(trainer)
    real = transfer._by_one

    async def spoilt_first(*arguments: Any) -> Any:
        """The first try meets a delta with a flipped bit."""
        if arguments[6] == 1:
            policy = arguments[0].services.policy
            await policy.open_transfer("disk", "early", 1, mutation())
            link = read_links(folder)[-1]
            path = link.folder / link.files[0].name
            path.write_bytes(path.read_bytes()[:-1] + b"\x99")
            monkeypatch.setattr("argosy.weightsync.chain_reader.sound_chain", lambda *_: True)
            try:
                return await real(*arguments)
            finally:
                monkeypatch.undo()
        return await real(*arguments)

    monkeypatch.setattr(transfer, "_by_one", spoilt_first)
    version = await publish_and_sync(ctx, stage, 1)
    assert [(await core.status()).version for core in rollouts.values()] == [version] * 2
    assert ctx.counters["sync/damaged"] == 2
    assert [link.kind for link in read_links(folder)] == ["base", "delta", "base"]


async def test_a_disk_that_can_not_be_written_ends_the_sync_and_the_old_weights_serve(
    make_rollout: MakeRollout, trainers: list[Trainer], tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    trainer = make_trainer(trainers, tiny, send=SendOptions(folder=str(tmp_path / "file" / "weights")))
    rollouts = {"rollout-0": make_rollout()}
    ctx = context(tmp_path, trainer, rollouts, **{"argosy.weight_sync.transport": "disk"})
    before = await answers(rollouts["rollout-0"])
    with pytest.raises(UnavailableError, match=r"argosy\.weight_sync\.disk_path"):
        await publish_and_sync(ctx, RolloutStage(ctx), 0)
    assert await answers(rollouts["rollout-0"]) == before


async def test_a_server_that_drains_costs_its_share_and_stays_out(
    make_rollout: MakeRollout, trainers: list[Trainer], tiny: Path, tmp_path: Path
) -> None:
    """Between two steps one of two servers is told to drain: it takes the weights, and no samples."""
    rollouts = {"rollout-0": make_rollout(), "rollout-1": make_rollout()}
    trainer = make_trainer(trainers, tiny)
    ctx = context(tmp_path, trainer, rollouts)
    stage = RolloutStage(ctx)
    await publish_and_sync(ctx, stage, 0)
    await rollouts["rollout-1"].drain(mutation())
    answered: list[object] = []

    async def sink(completion: Completion) -> None:
        answered.append(completion.sample_id)

    asked = [request(position, purpose="val") for position in range(4)]
    await stage.generate(asked, sink)
    assert sorted(map(str, answered)) == sorted(str(one.sample_id) for one in asked)
    await train(trainer)
    version = await publish_and_sync(ctx, stage, 1)
    assert (await rollouts["rollout-1"].status()).version == version
    assert stage.usable == {"rollout-0"}


async def test_weights_that_arrived_count_though_the_transfer_can_not_be_closed(
    make_rollout: MakeRollout, trainers: list[Trainer], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, core = make_trainer(trainers, tiny), make_rollout()
    ctx = context(tmp_path, trainer, {"rollout-0": core})

    async def close_transfer(*_: object) -> None:
        raise DeadlineError("close_transfer took longer than it may")

    monkeypatch.setattr(trainer, "close_transfer", close_transfer)
    version = await publish_and_sync(ctx, RolloutStage(ctx), 0)
    assert (await core.status()).version == version
    assert ctx.counters["sync/failed_closes"] == 1
