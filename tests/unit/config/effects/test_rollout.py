"""`actor_rollout_ref.rollout.*` and `.ref.*`: what is sampled, and how old log-probs are computed.

Sampling keys are tested from the configuration through the controller's requests to the tokens of a real engine.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from argosy.config import Config, load
from argosy.controller.stages.update import loss_config
from argosy.modeling.log_probs import TokenStats
from argosy.rollout.build import build_core
from argosy.rollout.core import HfRollout
from argosy.types.errors import ConfigError
from argosy.types.records import FinishReason
from support.training import grouped_batch
from unit.config.effects.recorded import run_recorded
from unit.config.effects.support import Core, Cores, model_of, problems, sample

Ids = list[tuple[int, ...]]


async def ids(engine: HfRollout, config: Config, purpose: str = "train") -> Ids:
    return [completion.token_ids for completion in await sample(engine, config, purpose=purpose)]


async def greedy(engine: HfRollout, config: Config) -> Ids:
    return await ids(engine, config.with_values({"actor_rollout_ref.rollout.do_sample": False}))


def test_name(job: Config) -> None:
    changed = job.with_values({"actor_rollout_ref.rollout.name": "trtllm"})
    assert "rollout.name=trtllm is an engine that is not there" in problems(changed)
    with pytest.raises(ConfigError, match=r"rollout\.name=trtllm"):
        build_core(changed)


async def test_n(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses per prompt, and sequences per mini-batch."""
    changed = job.with_values({"actor_rollout_ref.rollout.n": 3})
    recorded = await run_recorded(changed, monkeypatch)
    assert recorded.calls("train") == [12, 12]
    assert {request.sample_id.k for request in recorded.requests("train")} == {0, 1, 2}
    assert recorded.updates[0].mini_batch_size == 12


async def test_do_sample(job: Config, engine: HfRollout) -> None:
    assert len(set(await ids(engine, job))) == 4
    changed = job.with_values({"actor_rollout_ref.rollout.do_sample": False})
    assert len(set(await ids(engine, changed))) == 1


async def test_temperature(job: Config, engine: HfRollout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sampling, of the loss, and of every log-prob."""
    changed = job.with_values({
        "actor_rollout_ref.rollout.temperature": 1e-4, "actor_rollout_ref.actor.use_kl_loss": True,
        "actor_rollout_ref.actor.ppo_epochs": 2,
    })  # fmt: skip
    assert await ids(engine, changed) == await greedy(engine, job)
    assert (loss_config(job).temperature, loss_config(changed).temperature) == (1.0, 1e-4)
    assert (await run_recorded(changed, monkeypatch)).temperatures == {"policy": [1e-4] * 2, "reference": [1e-4] * 2}


async def test_top_k(job: Config, engine: HfRollout) -> None:
    changed = job.with_values({"actor_rollout_ref.rollout.top_k": 1})
    assert await ids(engine, changed) == await greedy(engine, job)


async def test_top_p(job: Config, engine: HfRollout) -> None:
    changed = job.with_values({"actor_rollout_ref.rollout.top_p": 1e-6})
    assert await ids(engine, changed) == await greedy(engine, job)


async def test_repetition_penalty(job: Config, engine: HfRollout) -> None:
    """So strong that no token comes twice, where without it one does."""
    longer = job.with_values({"data.max_response_length": 40})
    changed = longer.with_values({"actor_rollout_ref.rollout.repetition_penalty": 1000.0})
    repeats = [sum(len(row) - len(set(row)) for row in await greedy(engine, config)) for config in (longer, changed)]
    assert (repeats[0] > 0, repeats[1]) == (True, 0)


async def test_ignore_eos(job: Config, cores: Cores, engine: HfRollout) -> None:
    """The model is told that the first token of the greedy answer is its end token."""
    [first, *_] = (await greedy(engine, job))[0]
    ending = job.with_values({
        "actor_rollout_ref.model.override_config": {"eos_token_id": first},
        "actor_rollout_ref.rollout.do_sample": False,
    })  # fmt: skip
    changed = ending.with_values({"actor_rollout_ref.rollout.ignore_eos": True})
    core = cores("rollout", ending)
    assert [len(row) for row in await ids(core, ending)] == [1] * 4
    assert [len(row) for row in await ids(core, changed)] == [8] * 4


async def test_max_model_len(job: Config, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    """null is prompt + response: 72 here. A shorter one cuts responses; the prompts have 25 and 29 tokens."""
    changed = job.with_values({"actor_rollout_ref.rollout.max_model_len": 30})
    limits = [(await cores("rollout", config).status()).max_model_len for config in (job, changed)]
    assert limits == [72, 30]
    recorded = await run_recorded(changed, monkeypatch)
    requests = [*recorded.requests("train"), *recorded.requests("val")]
    assert {len(request.prompt_ids) + request.params.max_tokens for request in requests} == {30}


@pytest.mark.parametrize("key", ["actor_rollout_ref.rollout.dtype", "argosy.rollout.dtype"])
async def test_dtype(job: Config, cores: Cores, key: str) -> None:
    """The engine's type, by both names, and that of the weights which the trainer sends it."""
    from support.training import mutation

    dtype = load([f"{key}=bfloat16"]).argosy.rollout.dtype
    changed = job.with_values({"argosy.rollout.dtype": dtype})
    found = [next(model_of("rollout", cores("rollout", config)).parameters()).dtype for config in (job, changed)]
    assert found == [torch.float32, torch.bfloat16]
    manifest = await cores("trainer", changed).publish_weights("l0", 0, mutation())
    assert {tensor.dtype for tensor in manifest.tensors} == {"bfloat16"}


async def passes(core: Core, model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sequences in each forward pass over 12 sequences without gradient."""
    counts: list[int] = []
    real = model.response_stats

    def counted(packed: Any, **rest: Any) -> TokenStats:
        counts.append(packed.sequence_count)
        return real(packed, **rest)  # type: ignore[no-any-return]

    monkeypatch.setattr(model, "response_stats", counted)
    await core.compute_log_probs(grouped_batch(6, 2), ["log_probs"], temperature=1.0, deadline_s=60)
    return counts


async def trainer_passes(config: Config, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    core = cores("trainer", config)
    return await passes(core, core._backend._model, monkeypatch)


async def reference_passes(config: Config, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    core = cores("reference", config)
    return await passes(core, core._model, monkeypatch)


async def test_log_prob_micro_batch_size(job: Config, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = job.with_values({"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 4})
    assert await trainer_passes(job, cores, monkeypatch) == [12]
    assert await trainer_passes(changed, cores, monkeypatch) == [4, 4, 4]


async def test_log_prob_use_dynamic_bsz(job: Config, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    by_sequences = job.with_values({"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 4})
    changed = by_sequences.with_values({"actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True})
    assert await trainer_passes(changed, cores, monkeypatch) == [12]


async def test_log_prob_max_token_len(job: Config, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = job.with_values({"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 60})
    found = await trainer_passes(changed, cores, monkeypatch)
    assert (len(found) > 1, sum(found)) == (True, 12)


async def test_ref_log_prob_micro_batch_size(job: Config, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = job.with_values({"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 4})
    assert await reference_passes(job, cores, monkeypatch) == [12]
    assert await reference_passes(changed, cores, monkeypatch) == [4, 4, 4]


async def test_ref_log_prob_use_dynamic_bsz(job: Config, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    by_sequences = job.with_values({"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 4})
    changed = by_sequences.with_values({"actor_rollout_ref.ref.log_prob_use_dynamic_bsz": True})
    assert await reference_passes(changed, cores, monkeypatch) == [12]


async def test_ref_log_prob_max_token_len(job: Config, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = job.with_values({"actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": 60})
    found = await reference_passes(changed, cores, monkeypatch)
    assert (len(found) > 1, sum(found)) == (True, 12)


SAMPLED = {
    "actor_rollout_ref.rollout.val_kwargs.do_sample": True,
    "actor_rollout_ref.rollout.val_kwargs.temperature": 1.0,
}


async def test_val_do_sample(job: Config, engine: HfRollout) -> None:
    warm = job.with_values({"actor_rollout_ref.rollout.val_kwargs.temperature": 1.0})
    changed = warm.with_values({"actor_rollout_ref.rollout.val_kwargs.do_sample": True})
    assert await ids(engine, warm, "val") == await greedy(engine, job)
    assert len(set(await ids(engine, changed, "val"))) == 4


async def test_val_n(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = job.with_values({
        **SAMPLED, "actor_rollout_ref.rollout.val_kwargs.n": 3, "trainer.val_only": True
    })  # fmt: skip
    assert (await run_recorded(changed, monkeypatch)).calls("val") == [12]


async def test_val_temperature(job: Config, engine: HfRollout) -> None:
    assert len(set(await ids(engine, job.with_values(SAMPLED), "val"))) == 4
    changed = job.with_values({**SAMPLED, "actor_rollout_ref.rollout.val_kwargs.temperature": 1e-4})
    assert await ids(engine, changed, "val") == await greedy(engine, job)


async def test_val_top_k(job: Config, engine: HfRollout) -> None:
    changed = job.with_values({**SAMPLED, "actor_rollout_ref.rollout.val_kwargs.top_k": 1})
    assert await ids(engine, changed, "val") == await greedy(engine, job)


async def test_val_top_p(job: Config, engine: HfRollout) -> None:
    changed = job.with_values({**SAMPLED, "actor_rollout_ref.rollout.val_kwargs.top_p": 1e-6})
    assert await ids(engine, changed, "val") == await greedy(engine, job)


async def test_min_p(job: Config, engine: HfRollout) -> None:
    changed = job.with_values({"argosy.rollout.min_p": 0.999})
    assert await ids(engine, changed) == await greedy(engine, job)


async def test_min_response_length(job: Config, engine: HfRollout) -> None:
    [first, *_] = (await greedy(engine, job))[0]
    stopping = job.with_values({"argosy.rollout.stop_token_ids": [first], "actor_rollout_ref.rollout.do_sample": False})
    changed = stopping.with_values({"argosy.rollout.min_response_length": 5})
    assert {len(row) for row in await ids(engine, stopping)} == {1}
    assert min(len(row) for row in await ids(engine, changed)) >= 5


@pytest.mark.parametrize("purpose", ["train", "val"])
async def test_stop_token_ids(job: Config, engine: HfRollout, purpose: str) -> None:
    cold = job.with_values({"actor_rollout_ref.rollout.do_sample": False})
    third = (await ids(engine, cold))[0][2]
    changed = cold.with_values({"argosy.rollout.stop_token_ids": [third]})
    found = await ids(engine, changed, purpose)
    assert {row[-1] for row in found} == {third}
    assert max(len(row) for row in found) <= 3


@pytest.mark.parametrize("purpose", ["train", "val"])
async def test_stop(job: Config, engine: HfRollout, purpose: str) -> None:
    cold = job.with_values({"actor_rollout_ref.rollout.do_sample": False, "data.max_response_length": 40})
    [whole, *_] = await sample(engine, cold)
    letter = next(letter for letter in whole.text if letter.isascii())
    changed = cold.with_values({"argosy.rollout.stop": [letter]})
    [cut, *_] = await sample(engine, changed, purpose=purpose)
    assert cut.text == whole.text.partition(letter)[0]
    assert (cut.finish_reason, len(cut.token_ids) < len(whole.token_ids)) == (FinishReason.STOP, True)
