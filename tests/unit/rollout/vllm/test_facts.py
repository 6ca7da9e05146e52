"""What the vLLM engine says of a model before it loads it, against the loaded model."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from argosy.modeling.loading import ModelSource, load_plain
from argosy.modeling.tiny import save_tiny_model
from argosy.rollout.engines.vllm.engine import VllmEngine
from argosy.rollout.engines.vllm.facts import cache_bytes_per_token, read_facts
from argosy.rollout.engines.vllm.options import VllmOptions, check_options
from argosy.types.errors import ConfigError, InvalidInputError
from argosy.weightsync import find_tied, shapes_of


@pytest.mark.parametrize("tied", [True, False])
def test_facts_are_those_of_the_loaded_model(tmp_path: Path, tied: bool) -> None:
    folder = save_tiny_model(tmp_path / "model", tied=tied)
    state = load_plain(ModelSource(str(folder), device="cpu")).state_dict()
    facts = read_facts(VllmOptions(str(folder), max_model_len=100))
    assert dict(facts.shapes) == shapes_of(state)
    assert facts.tied == find_tied(state)
    assert (len(facts.tied), facts.vocab_size, facts.context_len) == (int(tied), 259, 100)
    assert list(facts.casts) == []


def test_held_in_bfloat16_it_takes_float32(tmp_path: Path) -> None:
    options = VllmOptions(str(save_tiny_model(tmp_path / "model")), dtype="bfloat16")
    facts = read_facts(options)
    assert {shape.dtype for shape in facts.shapes.values()} == {"bfloat16"}
    assert list(facts.casts) == [("float32", "bfloat16")]
    assert facts.context_len == 1024
    assert cache_bytes_per_token(options) == 2 * 2 * 2 * 16 * 2


def test_d9_end_ids_of_both_files_count(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 258, 259]}))
    assert read_facts(VllmOptions(str(folder))).eos_token_ids == {2, 9, 258}  # 259 is no id of this model


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"has no config\.json"):
        read_facts(VllmOptions(str(tmp_path)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"slot_count": 0},
        {"tensor_parallel_size": 0},
        {"max_model_len": 1},
        {"gpu_memory_utilization": 0.0},
        {"prefill_token_budget": 0},
    ],
)
def test_wrong_options_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        check_options(VllmOptions("model", **wrong))  # type: ignore[arg-type]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="this interpreter has vllm")
def test_an_interpreter_without_vllm_is_told_of_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"set argosy\.services\.rollout\.python"):
        VllmEngine(VllmOptions("model"), str)
