"""Llama without transformers: the same names, values and logits, and nothing taken that isn't plainly known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from argosy.modeling.loading import ModelSource, load_plain
from argosy.modeling.tiny import save_tiny_model
from argosy.rollout.engines.hf.llama_loading import load_llama
from argosy.rollout.engines.hf.loading import LoadedModel, adopt, eos_ids
from argosy.rollout.engines.hf.runner import Runner
from unit.rollout.test_models import SIZES, save

MODELS: dict[str, Callable[[Any], Any]] = {
    "tied": lambda t: t.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "untied": lambda t: t.LlamaConfig(**SIZES, tie_word_embeddings=False, rms_norm_eps=1e-3),
    "own head size": lambda t: t.LlamaConfig(**SIZES, head_dim=24, rope_parameters={"rope_theta": 5e5}),
    "all heads": lambda t: t.LlamaConfig(**(SIZES | {"num_key_value_heads": 4})),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_model_of_transformers_to_the_bit(tmp_path: Path, name: str, dtype: str) -> None:
    source = ModelSource(str(save(tmp_path, MODELS[name])), dtype=dtype, device="cpu")
    ours, theirs = load_llama(source), load_plain(source)
    assert ours is not None
    state, expected = ours.state_dict(), theirs.state_dict()
    assert list(state) == list(expected)
    assert all(torch.equal(state[key], expected[key]) for key in state)
    assert not any(parameter.requires_grad for parameter in ours.parameters())
    assert len(set(map(Tensor.data_ptr, state.values()))) == len(set(map(Tensor.data_ptr, expected.values())))
    ids = (torch.arange(150) * 37 % 256 + 3)[None]
    with torch.inference_mode():
        assert torch.equal(ours(ids, use_cache=False).logits, theirs(ids, use_cache=False).logits)
    assert eos_ids(ours) == eos_ids(theirs) == {2}
    for pair in zip(
        passes(adopt(ours, native_kernels=False)), passes(adopt(theirs, native_kernels=False)), strict=True
    ):
        assert torch.equal(*pair)


def passes(model: LoadedModel) -> tuple[Tensor, Tensor]:
    """Keys and values of a prompt in two pieces beside another's, and logits after one token more of each."""
    runner = Runner(model, slot_count=2, max_model_len=64)
    runner.slots.reserve(40)
    fills = [runner.begin([(7 * place + row) % 250 + 3 for place in range(20 + row)]) for row in range(2)]
    runner.prefill(fills, 11)
    runner.prefill(fills)
    for slot, fill in enumerate(fills):
        runner.slots.fill(slot, fill.store)
    return torch.cat([fill.store for fill in fills], 2), runner.decode([5, 9], [20, 21]).clone()


@pytest.mark.parametrize(
    "changed",
    [
        {"model_type": "mistral"},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"pretraining_tp": 2},
        {"quantization_config": {"bits": 4}},
        {"auto_map": {"AutoModelForCausalLM": "own.Model"}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}},
        {"rope_parameters": None, "rope_theta": 1e4},
        {"num_hidden_layers": 3},
        {"num_hidden_layers": 1},
        {"intermediate_size": 64},
        {"num_key_value_heads": 3},
        {"vocab_size": None},
    ],
    ids=str,
)
def test_what_is_not_plainly_known_is_left_to_transformers(tmp_path: Path, changed: dict[str, Any]) -> None:
    file = save_tiny_model(tmp_path) / "config.json"
    source = ModelSource(str(tmp_path), device="cpu")
    assert load_llama(source) is not None
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    assert load_llama(source) is None


def test_so_are_other_files_and_wishes(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    assert load_llama(ModelSource(str(folder), device="cpu", override_config={"rms_norm_eps": 0.5})) is None
    assert load_llama(ModelSource(str(folder), device="cpu", trust_remote_code=True)) is None
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    assert load_llama(ModelSource(str(folder), device="cpu")) is None


def test_the_file_may_change_once_it_is_loaded(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    model = load_llama(ModelSource(str(folder), device="cpu"))
    assert model is not None
    before = model.model.norm.weight.clone(), model.lm_head.weight.clone()
    file = folder / "model.safetensors"
    with file.open("r+b") as opened:
        opened.write(bytes(file.stat().st_size))
    assert torch.equal(model.model.norm.weight, before[0])
    assert torch.equal(model.lm_head.weight, before[1])
