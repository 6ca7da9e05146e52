from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from argosy.modeling.loading import ModelSource, load_causal_lm, resolve_device, resolve_dtype
from argosy.modeling.tiny import save_tiny_model
from argosy.types.errors import InvalidInputError


def load(path: str) -> object:
    return load_causal_lm(ModelSource(path, device="cpu"))


@pytest.mark.parametrize("path", ["/no/such/model", "./no/such", "a/b/c"])
def test_no_such_folder(path: str) -> None:
    with pytest.raises(InvalidInputError, match="does not exist"):
        load(path)


def test_an_empty_path_names_the_key() -> None:
    with pytest.raises(InvalidInputError, match=r"actor_rollout_ref\.model\.path is empty"):
        load("")


def test_a_folder_without_config_or_without_weights(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no config\.json"):
        load(str(tmp_path))
    shutil.copyfile(tiny_folder / "config.json", tmp_path / "config.json")
    with pytest.raises(InvalidInputError, match="no weights"):
        load(str(tmp_path))


def test_a_file_in_place_of_a_folder(tiny_folder: Path) -> None:
    with pytest.raises(InvalidInputError, match="is a file"):
        load(str(tiny_folder / "config.json"))


def test_a_truncated_weights_file(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(tiny_folder, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InvalidInputError, match="can't be loaded"):
        load(str(folder))


def test_absent_tensors_are_an_error_and_never_random(tiny_folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "holes"
    shutil.copytree(tiny_folder, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidInputError, match=r"layers\.1\.mlp\.up_proj\.weight is missing"):
        load(str(folder))


def test_no_dropout_survives_loading(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "m", attention_dropout=0.5)
    model = load_causal_lm(ModelSource(str(folder), device="cpu"))
    assert not model.training
    assert {layer.self_attn.attention_dropout for layer in model.model.layers} == {0.0}


def test_unknown_dtypes_and_devices() -> None:
    assert resolve_dtype("bfloat16") == torch.bfloat16
    with pytest.raises(InvalidInputError, match="unknown dtype 'fp8'; known: float32"):
        resolve_dtype("fp8")
    with pytest.raises(InvalidInputError, match="device 'tpu'"):
        resolve_device("tpu")
