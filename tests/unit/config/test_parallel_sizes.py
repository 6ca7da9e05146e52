"""Sizes of tensor and sequence parallelism that don't fit are refused with the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config, find_problems
from argosy.modeling.heads import check_heads, kv_repeats
from argosy.types.errors import InvalidInputError

ULYSSES, TENSOR = "actor_rollout_ref.actor.ulysses_sequence_parallel_size", "argosy.trainer.tensor_parallel_size"


def refused(config: Config, values: dict[str, Any]) -> list[str]:
    """Without what is said of the number of ranks itself."""
    found = find_problems(config.with_values(values))
    return [problem for problem in found if not problem.startswith("trainer.n_gpus_per_node:")]


def model_folder(config: Config, tmp_path: Path, **fields: Any) -> Config:
    (tmp_path / "config.json").write_text(json.dumps(fields))
    return config.with_values({"actor_rollout_ref.model.path": str(tmp_path), "trainer.n_gpus_per_node": 8})


def test_sizes_divide_the_ranks(valid: Config) -> None:
    for sizes, together in (({ULYSSES: 3}, 3), ({ULYSSES: 2, TENSOR: 3}, 6), ({TENSOR: 16}, 16)):
        (problem,) = refused(valid, {"trainer.n_gpus_per_node": 8, **sizes})
        assert f"= {together} doesn't divide trainer.n_gpus_per_node=8" in problem
    assert refused(valid, {"trainer.n_gpus_per_node": 1, ULYSSES: 0})[0].startswith(f"{ULYSSES}: got 0")


@pytest.mark.parametrize(
    ("heads", "sizes", "said"),
    [
        ((12, 2), {TENSOR: 8}, "size 8 doesn't divide the model's 12 attention heads; sizes that fit: 1, 2 (in"),
        ((12, 2), {TENSOR: 4}, "model's 2 key-value heads; sizes that fit: 1, 2 (in"),
        ((12, 12), {ULYSSES: 8}, "the model's 12 attention heads; sizes that fit: 1, 2, 3, 4, 6, 12 (in"),
        (
            (12, 2),
            {TENSOR: 2, ULYSSES: 4},
            "12 attention heads ÷ tensor parallel 2 = 6; sizes that fit: 1, 2, 3, 6 (in",
        ),
    ],
)
def test_sizes_divide_the_models_heads(
    valid: Config, tmp_path: Path, heads: tuple[int, int], sizes: dict[str, int], said: str
) -> None:
    fields: dict[str, Any] = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1]}
    for written in (fields, {"text_config": fields}):
        (problem,) = refused(model_folder(valid, tmp_path, **written), sizes)
        assert said in problem


def test_e1_every_rank_can_have_a_sequence(valid: Config) -> None:
    """Mini-batches of 4 prompts × 4 responses: 16 shares, or 32 ranks that share them two by two."""
    assert find_problems(valid.with_values({"trainer.n_gpus_per_node": 16}), files=False) == []
    assert find_problems(valid.with_values({"trainer.n_gpus_per_node": 32, TENSOR: 2}), files=False) == []
    (problem,) = find_problems(valid.with_values({"trainer.n_gpus_per_node": 17}), files=False)
    assert problem.startswith("trainer.n_gpus_per_node: got 17, which is 17 shares of each mini-batch of 16 sequences")
    ppo = {"algorithm.adv_estimator": "gae", "critic.ppo_mini_batch_size": 2, "trainer.n_gpus_per_node": 16}
    (problem,) = find_problems(valid.with_values(ppo), files=False)
    assert "of 8 sequences (critic.ppo_mini_batch_size 2 × rollout.n 4)" in problem


def test_divided_layers_are_not_compiled(valid: Config) -> None:
    compiled = {"trainer.n_gpus_per_node": 2, "actor_rollout_ref.actor.use_torch_compile": True}
    assert refused(valid, compiled) == []
    (problem,) = refused(valid, compiled | {TENSOR: 2})
    assert "use_torch_compile: got true with argosy.trainer.tensor_parallel_size=2" in problem


def test_sizes_that_fit_and_models_that_do_not_say(valid: Config, tmp_path: Path) -> None:
    many = model_folder(valid, tmp_path, num_attention_heads=16, num_key_value_heads=2)
    assert refused(many, {TENSOR: 2, ULYSSES: 4}) == []
    assert refused(model_folder(valid, tmp_path, n_head=3), {TENSOR: 2}) == []
    assert refused(many, {"actor_rollout_ref.model.path": "owner/name", ULYSSES: 8}) == []


@pytest.mark.parametrize("heads", range(1, 33))
def test_key_value_heads_repeated_for_the_ranks_divide_their_group(heads: int) -> None:
    """Whatever the ranks that divide the heads: the repeats divide H/K, and the ranks divide the repeated heads."""
    for kv_heads in (k for k in range(1, heads + 1) if heads % k == 0):
        for ranks in (s for s in range(1, heads + 1) if heads % s == 0):
            repeats = kv_repeats(kv_heads, ranks)
            assert (heads // kv_heads) % repeats == 0
            assert (kv_heads * repeats) % ranks == 0


def test_heads_are_refused_with_the_numbers() -> None:
    with pytest.raises(InvalidInputError, match="tensor parallel size 2 doesn't divide the model's 9 attention heads"):
        check_heads(9, 3, tensor_parallel=2)
    check_heads(8, 1, sequence_parallel=8)
