from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from argosy.modeling.tiny import save_tiny_model
from argosy.trainer.core import Trainer
from argosy.trainer.export import TOKENIZER_FILES
from argosy.trainer.options import LoraOptions
from argosy.types.errors import NotFoundError, StorageError
from argosy.types.ids import PolicyVersion
from argosy.types.records import LossConfig, UpdateConfig, WeightsForm
from argosy.weightsync import Staging
from argosy.weightsync.freezing import SnapshotWriter
from argosy.weightsync.transports import SendOptions
from support.training import grouped_batch, mutation, with_own_log_probs

ONE_STEP = UpdateConfig(LossConfig(), mini_batch_size=12)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def trained(trainer: Trainer) -> Trainer:
    batch = await with_own_log_probs(trainer, grouped_batch())
    await trainer.update(batch, ONE_STEP, mutation(0))
    return trainer


def model_state(trainer: Trainer) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = trainer._backend.model_for_export().state_dict()
    return state


@pytest.mark.parametrize("tied", [True, False])
async def test_transformers_loads_the_export_with_tokenizer_and_template(
    make_trainer: Any, tmp_path: Path, tied: bool
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = save_tiny_model(tmp_path / "source", tied=tied)
    trainer = await trained(make_trainer(source))
    names = await trainer.export_hf(str(tmp_path / "hf"), mutation(1))
    assert names_in(tmp_path / "hf") == sorted(names)

    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    ours = model_state(trainer)
    assert all(torch.equal(value, ours[name]) for name, value in model.state_dict().items())
    assert model.config.tie_word_embeddings is tied
    assert model.config.use_cache is True
    assert (tmp_path / "hf" / "generation_config.json").is_file()
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            assert (tmp_path / "hf" / name).read_bytes() == (source / name).read_bytes()
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "hf")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2+2?"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert model.generate(**prompt, max_new_tokens=3, do_sample=False).shape[1] > prompt["input_ids"].shape[1]


async def test_an_older_export_is_replaced_whole(make_trainer: Any, tmp_path: Path) -> None:
    target = tmp_path / "hf"
    target.mkdir()
    (target / "stale.bin").write_bytes(b"x")
    await make_trainer().export_hf(str(target), mutation(0))
    assert not (target / "stale.bin").exists()
    assert names_in(tmp_path) == ["hf"]


@pytest.mark.parametrize("step", ["write", "move"])
async def test_a_failed_export_leaves_the_older_one(
    make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    target, trainer = tmp_path / "hf", make_trainer()
    names = await trainer.export_hf(str(target), mutation(0))
    rename = Path.rename

    def full(self: object, *args: object, **settings: object) -> None:
        raise OSError("No space left on device")

    def no_move(self: Path, to: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError("Operation not permitted")
        return rename(self, to)

    with monkeypatch.context() as patch:
        if step == "write":
            patch.setattr(trainer._backend.model_for_export().__class__, "save_pretrained", full)
        else:
            patch.setattr(Path, "rename", no_move)
        with pytest.raises(StorageError, match="no space left" if step == "write" else "not allowed"):
            await trainer.export_hf(str(target), mutation(0, request_id="again"))
    assert names_in(target) == names
    assert names_in(tmp_path) == ["hf"]


async def test_an_older_export_is_there_until_the_new_one_is_written(
    make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, trainer = tmp_path / "hf", make_trainer()
    await trainer.export_hf(str(target), mutation(0))
    there: list[bool] = []
    rmtree = shutil.rmtree

    def watched(path: Path, **options: Any) -> None:
        rmtree(path, **options)
        there.append((target / "config.json").is_file())

    monkeypatch.setattr(shutil, "rmtree", watched)
    await trainer.export_hf(str(target), mutation(0, request_id="again"))
    assert there
    assert all(there)


async def test_a_place_that_cannot_be_written_is_named(make_trainer: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file/hf"):
        await make_trainer().export_hf(str(tmp_path / "file" / "hf"), mutation(0))


async def fetch(trainer: Trainer) -> dict[str, torch.Tensor]:
    """All tensors as a receiver gets them, tied names included."""
    source = trainer.weight_source()
    manifest = await source.get_manifest()
    staging = Staging(manifest)
    async for chunk in source.stream_weights(manifest.version):
        staging.write(chunk)
    return dict(staging.finish())


@pytest.mark.parametrize("tied", [True, False])
async def test_d2_published_weights_are_the_models_and_tied_heads_stay_tied(
    make_trainer: Any, tmp_path: Path, tied: bool
) -> None:
    folder = save_tiny_model(tmp_path / "m", tied=tied)
    trainer = await trained(make_trainer(folder))
    manifest = await trainer.publish_weights("main", 1, mutation(1))
    received, ours = await fetch(trainer), model_state(trainer)
    specs = {spec.name: spec for spec in manifest.tensors}
    assert (specs["lm_head.weight"].tied_to == "model.embed_tokens.weight") is tied
    assert torch.equal(received["model.embed_tokens.weight"], received.get("lm_head.weight", torch.zeros(0))) is tied
    assert all(torch.equal(value, ours[name]) for name, value in received.items())
    assert received.keys() | {"lm_head.weight"} == ours.keys()


async def test_d2_a_tied_model_with_a_redundant_head_in_its_file(make_trainer: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_tiny_model(tmp_path / "m", tied=True)
    tensors = load_file(folder / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": embedding.clone()}, folder / "model.safetensors", metadata={"format": "pt"})
    trainer = await trained(make_trainer(folder))
    await trainer.publish_weights("main", 1, mutation(1))
    received = await fetch(trainer)
    assert torch.equal(received["lm_head.weight"], received["model.embed_tokens.weight"])
    assert not torch.equal(received["lm_head.weight"], embedding)


async def test_a_published_version_does_not_move_with_training(make_trainer: Any) -> None:
    trainer = make_trainer()
    first = await trainer.publish_weights("main", 0, mutation(0))
    before = await fetch(trainer)
    before = {name: value.clone() for name, value in before.items()}
    await trained(trainer)
    assert (await trainer.status()).version == first.version
    assert all(torch.equal(value, before[name]) for name, value in (await fetch(trainer)).items())
    second = await trainer.publish_weights("main", 1, mutation(1))
    assert second.version.digest != first.version.digest
    assert (await trainer.status()).version == second.version


async def test_publishing_the_same_version_again_is_free_and_equal(make_trainer: Any) -> None:
    trainer = make_trainer()
    first = await trainer.publish_weights("main", 0, mutation(0))
    snapshot = trainer.weight_source().snapshot
    assert await trainer.publish_weights("main", 0, mutation(0)) == first
    assert trainer.weight_source().snapshot is snapshot
    renamed = await trainer.publish_weights("branch", 0, mutation(0))
    assert renamed.version.digest == first.version.digest
    assert renamed.version.lineage == "branch"


async def test_publishing_in_bfloat16_rounds_the_masters(make_trainer: Any) -> None:
    trainer = make_trainer(publish_dtype="bfloat16")
    manifest = await trainer.publish_weights("main", 0, mutation(0))
    assert {spec.dtype for spec in manifest.tensors} == {"bfloat16"}
    received, ours = await fetch(trainer), model_state(trainer)
    assert all(torch.equal(value, ours[name].bfloat16()) for name, value in received.items())


async def test_nothing_published_is_not_found(make_trainer: Any) -> None:
    trainer = make_trainer()
    assert (await trainer.status()).version is None
    with pytest.raises(NotFoundError, match="no weights yet"):
        await trainer.weight_source().get_manifest()


async def test_an_export_of_a_model_without_a_tokenizer_has_none(
    make_trainer: Any, tiny_folder: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(tiny_folder / name, bare / name)
    names = await make_trainer(bare).export_hf(str(tmp_path / "hf"), mutation(0))
    assert "tokenizer.json" not in names
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["model_type"] == "llama"


async def test_weights_are_looked_up_while_another_form_is_published(make_trainer: Any) -> None:
    """The event loop serves chunks while the compute thread adds a form: here exactly between two of them."""
    trainer = make_trainer(lora=LoraOptions(rank=2, alpha=4))
    merged = await trainer.publish_weights("main", 0, mutation(0))
    source = trainer.weight_source()
    published: list[Any] = []

    class Meddling(PolicyVersion):
        def __eq__(self, other: object) -> bool:
            if not published:
                published.append(source.publish(trainer._backend, "main", 0, WeightsForm.BASE, 0))
            return bool(other == merged.version)

        __hash__ = PolicyVersion.__hash__

    asked = Meddling(merged.version.lineage, merged.version.step, merged.version.digest)
    assert source._holding(asked).manifest == merged
    assert published


async def test_a_version_that_was_overwritten_half_way_is_the_base_of_no_delta(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(send=SendOptions(delta=True))
    await trainer.publish_weights("main", 0, mutation(0))
    await trained(trainer)
    put = SnapshotWriter.put
    calls = 0

    def failing(self: SnapshotWriter, name: str, tensor: torch.Tensor) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise MemoryError("no room")
        put(self, name, tensor)

    with monkeypatch.context() as patch:
        patch.setattr(SnapshotWriter, "put", failing)
        with pytest.raises(MemoryError):
            await trainer.publish_weights("main", 1, mutation(1))
    assert (await trainer.status()).version is None
    await trainer.publish_weights("main", 1, mutation(1, request_id="again"))
    assert trainer.weight_source().published().delta is None
    received, ours = await fetch(trainer), model_state(trainer)
    assert all(torch.equal(value, ours[name]) for name, value in received.items())
