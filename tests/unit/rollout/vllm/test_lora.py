"""The files of an adapter, and how vLLM's own LoRA is asked for; `vllm_programs/lora.py` has it run in vLLM."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from argosy.config import Config
from argosy.modeling.tiny import save_tiny_model
from argosy.rollout.engines.vllm import options_of
from argosy.rollout.engines.vllm.arguments import engine_arguments
from argosy.rollout.engines.vllm.facts import read_facts
from argosy.rollout.engines.vllm.lora import AdapterFolder
from argosy.rollout.engines.vllm.options import VllmOptions
from argosy.types.errors import InvalidInputError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("lora") / "model"))


def test_its_path_always_leads_to_one_whole_adapter(model: str) -> None:
    options = VllmOptions(model, lora_rank=4, lora_modules=("o_proj",))
    folder = AdapterFolder(options, read_facts(options))
    folder.clear()
    path = folder._current
    tensors = load_file(path / "adapter_model.safetensors")
    assert list(tensors) == [
        f"base_model.model.model.layers.0.self_attn.o_proj.lora_{side}.weight" for side in ("A", "B")
    ]
    assert all(not tensor.any() for tensor in tensors.values())
    name = "model.layers.1.mlp.up_proj"
    folder.write(2, 6.0, {f"{name}.lora_A.weight": torch.ones(2, 3), f"{name}.lora_B.weight": torch.ones(5, 2)})
    assert folder._current == path
    config = json.loads((path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 6.0, [name])
    assert load_file(path / "adapter_model.safetensors")[f"base_model.model.{name}.lora_B.weight"].sum() == 10
    assert len(list(path.parent.iterdir())) == 2, "the adapter and the link to it"
    folder.close()
    assert not path.parent.exists()


def test_a_model_without_such_modules_is_refused(model: str) -> None:
    options = VllmOptions(model, lora_rank=4, lora_modules=("nonsense",))
    with pytest.raises(InvalidInputError, match="no module nonsense that vLLM could adapt"):
        AdapterFolder(options, read_facts(options))


def chosen(model: str, rank: int, enable: bool | None) -> VllmOptions:
    return options_of(
        Config().with_values({
            "actor_rollout_ref.model.path": model, "actor_rollout_ref.model.lora_rank": rank,
            "actor_rollout_ref.rollout.engine_kwargs": {"vllm": {"enable_lora": enable}},
        })
    )  # fmt: skip


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (4, 8), (64, 64), (65, 128)])
def test_vllm_has_room_for_the_rank(model: str, rank: int, room: int) -> None:
    found = engine_arguments(chosen(model, rank, True), 128, on_cpu=True)
    assert (found["enable_lora"], found["max_lora_rank"], found["max_loras"]) == (True, room, 1)


@pytest.mark.parametrize("enable", [None, False])
def test_adapters_are_merged_unless_it_is_asked_for(model: str, enable: bool | None) -> None:
    assert "enable_lora" not in engine_arguments(chosen(model, 4, enable), 128, on_cpu=True)


def test_what_vllm_can_not_hold_is_refused(model: str) -> None:
    with pytest.raises(InvalidInputError, match="lora_rank: got 513, and vLLM's own LoRA takes at most 512"):
        engine_arguments(chosen(model, 513, True), 128, on_cpu=True)
    with pytest.raises(InvalidInputError, match=r"enable_lora=true wants actor_rollout_ref\.model\.lora_rank"):
        engine_arguments(chosen(model, 0, True), 128, on_cpu=True)
