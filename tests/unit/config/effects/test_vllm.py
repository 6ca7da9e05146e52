"""verl's keys for vLLM, as far as vLLM's own arguments; that these act is vLLM's business."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from argosy.config import Config, load
from argosy.rollout.engines.vllm import options_of
from argosy.rollout.engines.vllm.arguments import engine_arguments
from argosy.types.errors import InvalidInputError
from unit.config.effects.support import problems

R = "actor_rollout_ref.rollout"


def arguments(job: Config, values: dict[str, Any] | None = None, *, on_cpu: bool = True) -> dict[str, Any]:
    """Of vLLM's engine, with keys changed."""
    options = options_of(job.with_values({f"{R}.name": "vllm", **(values or {})}))
    return engine_arguments(options, options.max_model_len, on_cpu=on_cpu)


def test_tensor_model_parallel_size(job: Config) -> None:
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    assert [arguments(job, {key: count})["tensor_parallel_size"] for count in (1, 2)] == [1, 2]
    assert f"{key}: got 0" in problems(job.with_values({key: 0}))


def test_gpu_memory_utilization(job: Config) -> None:
    key = "actor_rollout_ref.rollout.gpu_memory_utilization"
    assert arguments(job, {key: 0.7})["gpu_memory_utilization"] == 0.7
    assert arguments(job, on_cpu=False)["gpu_memory_utilization"] == 0.5
    # 2 layers × 2 heads of keys and values × 16 numbers × 4 bytes; 8 slots of one block each, and 8 more.
    assert arguments(job)["kv_cache_memory_bytes"] == 2 * 2 * 2 * 16 * 4 * 128 * (8 + 8)
    for wrong in (0.0, 1.5):
        assert f"{key}: got {wrong}" in problems(job.with_values({key: wrong}))


def test_enforce_eager(job: Config) -> None:
    key = "actor_rollout_ref.rollout.enforce_eager"
    assert [arguments(job, on_cpu=on_cpu)["enforce_eager"] for on_cpu in (True, False)] == [True, False]
    assert arguments(job, {key: False})["enforce_eager"] is False
    assert arguments(job, {key: True}, on_cpu=False)["enforce_eager"] is True


def test_enable_chunked_prefill(job: Config) -> None:
    key = "actor_rollout_ref.rollout.enable_chunked_prefill"
    chosen = arguments(job)
    assert (chosen["enable_chunked_prefill"], chosen["max_num_batched_tokens"]) == (True, 4096 + 8)
    assert arguments(job, {key: False})["enable_chunked_prefill"] is False
    assert arguments(job, {key: False, f"{R}.max_model_len": 9000})["max_num_batched_tokens"] == 9000


def test_enable_prefix_caching(job: Config) -> None:
    key = "actor_rollout_ref.rollout.enable_prefix_caching"
    assert [arguments(job, {key: on})["enable_prefix_caching"] for on in (True, False)] == [True, False]


def test_max_num_seqs() -> None:
    assert load(["actor_rollout_ref.rollout.max_num_seqs=7"]).argosy.rollout.slot_count == 7


def test_max_num_batched_tokens() -> None:
    assert load(["actor_rollout_ref.rollout.max_num_batched_tokens=99"]).argosy.rollout.prefill_token_budget == 99


def test_engine_kwargs(job: Config) -> None:
    key = "actor_rollout_ref.rollout.engine_kwargs"
    chosen = arguments(job, {key: {"vllm": {"block_size": 64, "seed": None}}})
    assert chosen["block_size"] == 64
    assert "seed" not in chosen
    assert load([f"{key}.vllm.block_size=64"]).actor_rollout_ref.rollout.engine_kwargs == {"vllm": {"block_size": 64}}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("logprobs_mode", "distribution sampled from"), ("max_num_seqs", "actor_rollout_ref.rollout.max_num_seqs")],
)
def test_engine_kwargs_leave_alone_what_argosy_sets(job: Config, name: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"engine_kwargs\.vllm\.{name} can't be set: .*{reason}"):
        arguments(job, {f"{R}.engine_kwargs": {"vllm": {name: 1}}})


def test_keys_that_no_server_can_use_are_warned_about() -> None:
    def warnings(*given: str) -> list[str]:
        found: list[str] = []
        load([f"{R}.{one}" for one in given], on_warning=found.append)
        return found

    assert warnings("gpu_memory_utilization=0.4", "name=vllm") == []
    assert warnings("enforce_eager=true", "tensor_model_parallel_size=1") == []
    (eager,) = warnings("enforce_eager=false")
    assert eager == f"{R}.enforce_eager=false has no effect: the embedded engine never captures graphs."
    (other,) = warnings("enable_prefix_caching=false", "name=sglang")
    assert other.endswith("no rollout server runs vllm, but sglang.")
    (kwargs,) = warnings("engine_kwargs.vllm.seed=1")
    assert "engine_kwargs.vllm={'seed': 1} has no effect: no rollout server runs vllm" in kwargs
    (sglang,) = warnings("engine_kwargs.sglang.tp_size=1", "name=sglang")
    assert "give them by argosy.rollout.sglang.arguments" in sglang


def test_options_reach_the_engine_whole(job: Config) -> None:
    chosen = options_of(job, start_stale=False)
    assert dataclasses.replace(chosen, start_stale=True) == options_of(job)
    assert (chosen.slot_count, chosen.max_model_len, chosen.dtype) == (8, 72, "float32")
