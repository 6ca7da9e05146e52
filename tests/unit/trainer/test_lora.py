"""LoRA: what trains, what the engines get, what the reference is, and what is saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from argosy.modeling.loading import ModelSource, load_causal_lm
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.modeling.packed_model import PackedModel
from argosy.modeling.tiny import save_tiny_model
from argosy.trainer.backends.fitting import check_fit
from argosy.trainer.core import Trainer
from argosy.trainer.lora import ADAPTER_FOLDER, BASE_LOG_PROBS
from argosy.trainer.options import LoraOptions, OptimizerOptions
from argosy.trainer.schedule import Schedule
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import ConfigError, InvalidInputError
from argosy.types.records import LossConfig, UpdateConfig
from argosy.weightsync import Staging
from support.training import grouped_batch, mutation, with_own_log_probs

LORA = LoraOptions(rank=4, alpha=8)
FAST = OptimizerOptions(Schedule(1e-2))
CONFIG = UpdateConfig(LossConfig(), mini_batch_size=12)

Make = Callable[..., Trainer]


async def log_probs(trainer: Trainer, batch: TrajectoryBatch, *columns: str) -> list[np.ndarray[Any, Any]]:
    answer = await trainer.compute_log_probs(batch, columns or ["log_probs"], temperature=0.7, deadline_s=60)
    return [answer.ragged(name).values for name in columns or ["log_probs"]]


async def trained(trainer: Trainer, steps: range = range(2)) -> Trainer:
    for step in steps:
        batch = await with_own_log_probs(trainer, grouped_batch(seed=step))
        await trainer.update(batch, CONFIG, mutation(step))
    return trainer


async def published(trainer: Trainer, step: int) -> dict[str, torch.Tensor]:
    manifest = await trainer.publish_weights("main", step, mutation())
    staging = Staging(manifest)
    async for chunk in trainer.weight_source().stream_weights(manifest.version):
        staging.write(chunk)
    return {name: tensor.clone() for name, tensor in staging.finish().items()}


def plain_log_probs(folder: Path, batch: TrajectoryBatch, weights: dict[str, torch.Tensor] | None = None) -> Any:
    model = load_causal_lm(ModelSource(str(folder), device="cpu"))
    if weights is not None:
        model.load_state_dict(weights)
    found = PackedModel(model).evaluate(batch, ["log_probs"], temperature=0.7, limit=MicroBatchLimit(max_tokens=120))
    return found.ragged("log_probs").values


def base_parameters(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: p for name, p in trainer._backend._hf_model.named_parameters() if "lora_" not in name}  # type: ignore[attr-defined]


@pytest.mark.parametrize("checkpointing", [False, True])
async def test_only_the_adapter_trains_and_the_merged_weights_are_the_model(
    make_trainer: Make, tiny_folder: Path, checkpointing: bool
) -> None:
    """Merged log-probs are those with the adapter on; base_log_probs those of the start model; moments are few."""
    trainer = make_trainer(lora=LORA, optimizer=FAST, gradient_checkpointing=checkpointing)
    batch = grouped_batch(seed=9)
    before = {name: tensor.clone() for name, tensor in base_parameters(trainer).items()}
    start = plain_log_probs(tiny_folder, batch)
    assert np.array_equal((await log_probs(trainer, batch))[0], start), "B is 0 at the start"

    await trained(trainer)
    assert all(torch.equal(tensor, before[name]) for name, tensor in base_parameters(trainer).items())
    assert all(p.grad is None and not p.requires_grad for p in base_parameters(trainer).values())
    on, base, again = await log_probs(trainer, batch, "log_probs", BASE_LOG_PROBS, "entropy")
    assert np.array_equal(base, start)
    assert np.abs(on - base).max() > 1e-2
    assert len(again) == len(on)
    assert np.array_equal((await log_probs(trainer, batch))[0], on), "the adapter is on again"
    weights = await published(trainer, 2)
    assert np.abs(plain_log_probs(tiny_folder, batch, weights) - on).max() < 1e-4

    state = trainer._backend.state()
    assert all(name.endswith(("lora_A.default.weight", "lora_B.default.weight")) for name in state.model)
    assert len(state.optimizer) == 3 * len(state.model)
    assert (await trainer.status()).parameter_count == sum(tensor.numel() for tensor in state.model.values())


async def test_publishing_again_and_again_gives_the_same_bits(make_trainer: Make) -> None:
    trainer = await trained(make_trainer(lora=LORA, optimizer=FAST))
    first = await published(trainer, 2)
    await log_probs(trainer, grouped_batch(), BASE_LOG_PROBS)
    second = await published(trainer, 3)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


async def test_names_and_ties_are_those_of_the_model_without_lora(make_trainer: Make, tmp_path: Path) -> None:
    for tied in (True, False):
        folder = save_tiny_model(tmp_path / f"tied-{tied}", tied=tied)
        plain = await make_trainer(folder).publish_weights("main", 0, mutation())
        merged = await make_trainer(folder, lora=LORA).publish_weights("main", 0, mutation())
        assert merged == plain, "B is 0: the same weights, bit for bit"


async def test_e5_resume_repeats_the_unbroken_run_bit_for_bit(make_trainer: Make, tmp_path: Path) -> None:
    unbroken = await trained(make_trainer(lora=LORA, optimizer=FAST))
    files = await unbroken.save_checkpoint(str(tmp_path / "c"), mutation(2))
    size = sum((tmp_path / "c" / name).stat().st_size for name in files if name.startswith(("model", "optimizer")))
    assert size < sum(tensor.nbytes for tensor in base_parameters(unbroken).values()), "the frozen weights aren't in it"
    await trained(unbroken, range(2, 4))
    resumed = make_trainer(lora=LoraOptions(rank=4, alpha=8, seed=99), optimizer=FAST)
    assert (await resumed.load_checkpoint(str(tmp_path / "c"), mutation())).step == 2
    await trained(resumed, range(2, 4))
    first, second = unbroken._backend.state(), resumed._backend.state()
    for part in ("model", "optimizer"):
        one, other = getattr(first, part), getattr(second, part)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


async def test_h5_a_checkpoint_of_another_kind_or_base_is_refused(
    make_trainer: Make, tmp_path: Path, tiny_folder: Path
) -> None:
    await make_trainer(lora=LORA).save_checkpoint(str(tmp_path / "lora"), mutation(0))
    await make_trainer().save_checkpoint(str(tmp_path / "full"), mutation(0))
    other = save_tiny_model(tmp_path / "other", weight_scale=2.0)
    for trainer, saved, message in (
        (make_trainer(), "lora", "is missing"),
        (make_trainer(lora=LORA), "full", "is missing"),
        (make_trainer(lora=LoraOptions(rank=2)), "lora", r"has shape \(4, 64\)"),
        (make_trainer(other, lora=LORA), "lora", "trained on other weights"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            await trainer.load_checkpoint(str(tmp_path / saved), mutation())


async def test_the_export_holds_the_merged_model_and_the_adapter(
    make_trainer: Make, tmp_path: Path, tiny_folder: Path
) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    trainer = await trained(make_trainer(lora=LORA, optimizer=FAST))
    files = await trainer.export_hf(str(tmp_path / "hf"), mutation())
    adapter = tmp_path / "hf" / ADAPTER_FOLDER
    assert {"config.json", f"{ADAPTER_FOLDER}/adapter_config.json", f"{ADAPTER_FOLDER}/adapter_model.safetensors"} <= {
        *files
    }
    batch = grouped_batch(seed=9)
    on = (await log_probs(trainer, batch))[0]
    assert np.abs(plain_log_probs(tmp_path / "hf", batch) - on).max() < 1e-4
    assert json.loads((adapter / "adapter_config.json").read_text())["r"] == 4

    theirs: Any = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(theirs, str(adapter)).merge_and_unload()
    ours: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    expected = ours.state_dict()
    assert all(torch.allclose(tensor, expected[name], atol=1e-6) for name, tensor in theirs.state_dict().items())

    again = make_trainer(lora=LoraOptions(rank=0, adapter_path=str(adapter)))
    assert np.array_equal((await log_probs(again, batch))[0], on), "training can go on from it"
    with pytest.raises(InvalidInputError, match="of rank 4, but lora_rank is 2"):
        make_trainer(lora=LoraOptions(rank=2, adapter_path=str(adapter)))
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(InvalidInputError, match=r"lacks adapter_model\.safetensors"):
        make_trainer(lora=LoraOptions(rank=0, adapter_path=str(adapter)))


async def test_modules_are_chosen_by_name(make_trainer: Make) -> None:
    def modules(options: LoraOptions) -> set[str]:
        state = make_trainer(lora=options)._backend.state().model
        return {name.split(".lora_")[0].rsplit(".", 1)[1] for name in state}

    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert modules(LORA) == attention | {"gate_proj", "up_proj", "down_proj"}
    assert modules(LoraOptions(4, target_modules=("q_proj", "v_proj"))) == {"q_proj", "v_proj"}
    assert modules(LoraOptions(4, target_modules=r".*self_attn\..*")) == attention
    assert modules(LoraOptions(4, exclude_modules=("gate_proj", "up_proj", "down_proj"))) == attention


async def test_what_makes_no_sense_is_refused(make_trainer: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lora_rank ≥ 1"):
        LoraOptions(rank=0)
    with pytest.raises(ConfigError, match=r"lora_rank: got 1000, more than the rank of .* × .*set at most"):
        make_trainer(lora=LoraOptions(1000))
    with pytest.raises(ConfigError, match="nonsense"):
        make_trainer(lora=LoraOptions(4, target_modules=("nonsense",)))
    with pytest.raises(ConfigError, match="only plain LoRA of linear layers"):
        make_trainer(lora=LoraOptions(4, target_modules=("embed_tokens",)))
    tied = save_tiny_model(tmp_path / "tied", tied=True)
    with pytest.raises(ConfigError, match="lm_head: its weight is tied"):
        make_trainer(tied, lora=LoraOptions(4, target_modules=("lm_head",)))
    with pytest.raises(InvalidInputError, match="is of a model with LoRA"):
        await log_probs(make_trainer(), grouped_batch(), BASE_LOG_PROBS)


@pytest.mark.parametrize(("saved", "now"), [(8, 4), (8, 0), (0, 4), (4, 4)])
def test_a_checkpoint_of_another_rank_names_the_key(saved: int, now: int) -> None:
    def shapes(rank: int) -> dict[str, tuple[int, ...]]:
        return {"q.lora_A.default.weight": (rank, 16)} if rank else {"q.weight": (16, 16)}

    found = {name: torch.zeros(shape) for name, shape in shapes(saved).items()} | {"extra": torch.zeros(1)}
    with pytest.raises(InvalidInputError, match="of another model") as caught:
        check_fit("model", shapes(now), found)
    blamed = f"saved with actor_rollout_ref.model.lora_rank={saved}, this run has {now}"
    assert (blamed in caught.value.message) == (saved != now)
