"""`actor_rollout_ref.actor.*`: the objective, the walk over the batch, and how the trainer computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from argosy.config import Config
from argosy.controller.stages.reference import needs_old_log_probs
from argosy.controller.stages.update import loss_config, update_config
from argosy.modeling.log_probs import TokenStats
from argosy.trainer.minibatch import mini_batches
from argosy.trainer.objective import TokenColumns, objective
from argosy.types.records import GlobalNormalizer
from support.training import grouped_batch, mutation, with_own_log_probs
from unit.config.effects.recorded import run_recorded
from unit.config.effects.support import Core, Cores, model_of, problems

PLAIN = Config().with_values({"data.max_response_length": 10, "actor_rollout_ref.model.path": "m"})


def loss(
    config: Config,
    *,
    ratios: tuple[float, ...] = (1.0,),
    advantage: float = 1.0,
    owner: tuple[int, ...] | None = None,
    reference: float = 0.0,
) -> float:
    """The objective of a few response tokens with these probability ratios, an entropy of 1 each."""
    count = len(ratios)
    new = torch.log(torch.tensor(ratios)).requires_grad_()
    zeros, ones = torch.zeros(count), torch.ones(count)
    columns = TokenColumns(ones * advantage, ones, zeros, ones * reference, mini_batch_column=ones)
    owners = torch.tensor(owner or (0,) * count)
    sequences = int(owners.max()) + 1
    result = objective(
        TokenStats(new, ones), columns, owners, sequences, loss_config(config),
        GlobalNormalizer(float(count), float(sequences)),
    )  # fmt: skip
    return round(result.loss.item(), 4)


def test_clip_ratio() -> None:
    changed = PLAIN.with_values({"actor_rollout_ref.actor.clip_ratio": 0.4})
    assert [loss(config, ratios=(3.0,)) for config in (PLAIN, changed)] == [-1.2, -1.4]
    assert [loss(config, ratios=(0.1,), advantage=-1.0) for config in (PLAIN, changed)] == [0.8, 0.6]


def test_clip_ratio_low() -> None:
    changed = PLAIN.with_values({"actor_rollout_ref.actor.clip_ratio_low": 0.4})
    assert [loss(config, ratios=(3.0,)) for config in (PLAIN, changed)] == [-1.2, -1.2]
    assert [loss(config, ratios=(0.1,), advantage=-1.0) for config in (PLAIN, changed)] == [0.8, 0.6]


def test_clip_ratio_high() -> None:
    changed = PLAIN.with_values({"actor_rollout_ref.actor.clip_ratio_high": 0.4})
    assert [loss(config, ratios=(3.0,)) for config in (PLAIN, changed)] == [-1.2, -1.4]
    assert [loss(config, ratios=(0.1,), advantage=-1.0) for config in (PLAIN, changed)] == [0.8, 0.8]


def test_clip_ratio_c() -> None:
    changed = PLAIN.with_values({"actor_rollout_ref.actor.clip_ratio_c": 2.0})
    assert [loss(config, ratios=(9.0,), advantage=-1.0) for config in (PLAIN, changed)] == [3.0, 2.0]


def test_loss_agg_mode() -> None:
    """Sequences of 1 and 3 tokens whose losses are -1 and -1.2 each; null is what the loss is meant for."""
    found = {}
    for mode in (None, "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"):
        changed = PLAIN.with_values({"actor_rollout_ref.actor.loss_agg_mode": mode})
        found[mode] = loss(changed, ratios=(1.0, 3.0, 3.0, 3.0), owner=(0, 1, 1, 1))
    assert found == {
        None: -1.15, "token-mean": -1.15, "seq-mean-token-sum": -2.3, "seq-mean-token-mean": -1.1,
        "seq-mean-token-sum-norm": -0.23,
    }  # fmt: skip


def test_loss_scale_factor() -> None:
    """null is data.max_response_length, 10 here."""
    norm = PLAIN.with_values({"actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum-norm"})
    changed = norm.with_values({"actor_rollout_ref.actor.loss_scale_factor": 4.0})
    assert [loss(config) for config in (norm, changed)] == [-0.1, -0.25]


def test_entropy_coeff() -> None:
    changed = PLAIN.with_values({"actor_rollout_ref.actor.entropy_coeff": 0.3})
    assert [loss(config) for config in (PLAIN, changed)] == [-1.0, -1.3]


async def test_use_kl_loss(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The KL is in the loss, the reference is asked, and its log-probs are sent to the trainer."""
    changed = job.with_values({"actor_rollout_ref.actor.use_kl_loss": True})
    assert [loss(config, reference=-1.0) for config in (job, changed)] == [-1.0, round(-1.0 + 0.001 / np.e, 4)]
    without, with_kl = [await run_recorded(config, monkeypatch) for config in (job, other_folder(changed))]
    assert (len(without.temperatures["reference"]), len(with_kl.temperatures["reference"])) == (0, 2)
    assert (without.batches[0].has("ref_log_probs"), with_kl.batches[0].has("ref_log_probs")) == (False, True)


def other_folder(config: Config) -> Config:
    return config.with_values({"trainer.default_local_dir": f"{config.run_folder}-2"})


def test_kl_loss_coef() -> None:
    kl = PLAIN.with_values({"actor_rollout_ref.actor.use_kl_loss": True})
    changed = kl.with_values({"actor_rollout_ref.actor.kl_loss_coef": 0.5})
    assert loss(changed, reference=-1.0) == round(-1.0 + 0.5 / np.e, 4)


def test_kl_loss_type() -> None:
    kl = {"actor_rollout_ref.actor.use_kl_loss": True, "actor_rollout_ref.actor.kl_loss_coef": 1.0}
    found = {}
    for kind in ("k1", "k2", "k3", "abs"):
        changed = PLAIN.with_values({**kl, "actor_rollout_ref.actor.kl_loss_type": kind})
        found[kind] = loss(changed, reference=2.0) + 1.0
    assert found == {"k1": -2.0, "k2": 2.0, "k3": round(np.e**2 - 3, 4), "abs": 2.0}


def rows(config: Config, step: int = 0) -> list[list[int]]:
    """Row numbers of each mini-batch of 12 sequences in 6 groups of 2."""
    batch = grouped_batch(6, 2)
    return [part.tolist() for part in mini_batches(batch, update_config(config), step)]


WALK = PLAIN.with_values({"actor_rollout_ref.rollout.n": 2, "actor_rollout_ref.actor.ppo_mini_batch_size": 6})


def test_ppo_mini_batch_size() -> None:
    """In prompts: × n sequences. More than one optimizer step also needs old log-probs."""
    assert [len(part) for part in rows(WALK)] == [12]
    changed = WALK.with_values({"actor_rollout_ref.actor.ppo_mini_batch_size": 2})
    assert [len(part) for part in rows(changed)] == [4, 4, 4]
    batch_of_six = {"data.train_batch_size": 6}
    assert [needs_old_log_probs(config.with_values(batch_of_six)) for config in (WALK, changed)] == [False, True]


def test_ppo_epochs() -> None:
    changed = WALK.with_values({"actor_rollout_ref.actor.ppo_epochs": 3})
    assert [sorted(part) for part in rows(changed)] == [list(range(12))] * 3


def test_shuffle() -> None:
    changed = WALK.with_values({"actor_rollout_ref.actor.shuffle": True})
    assert rows(WALK) == [list(range(12))]
    assert rows(changed) != rows(WALK)
    assert sorted(rows(changed)[0]) == list(range(12))


def test_data_loader_seed() -> None:
    shuffled = WALK.with_values({"actor_rollout_ref.actor.shuffle": True})
    changed = shuffled.with_values({"actor_rollout_ref.actor.data_loader_seed": 5})
    assert rows(changed) != rows(shuffled)
    assert rows(changed) == rows(shuffled.with_values({"argosy.seed": 5}))


async def passes(core: Core, monkeypatch: pytest.MonkeyPatch, config: Config) -> list[int]:
    """Sequences in each forward pass of one update of 12 sequences."""
    counts: list[int] = []
    real = core._backend._model.response_stats

    def counted(packed: Any, **rest: Any) -> TokenStats:
        counts.append(packed.sequence_count)
        return real(packed, **rest)  # type: ignore[no-any-return]

    batch = await with_own_log_probs(core, grouped_batch(6, 2))
    monkeypatch.setattr(core._backend._model, "response_stats", counted)
    await core.update(batch, update_config(config), mutation())
    return counts


async def test_ppo_micro_batch_size_per_gpu(job: Config, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = job.with_values({"actor_rollout_ref.actor.ppo_mini_batch_size": 6})
    changed = whole.with_values({"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4})
    assert await passes(cores("trainer", whole), monkeypatch, whole) == [12]
    assert await passes(cores("trainer", changed), monkeypatch, changed) == [4, 4, 4]


async def test_use_dynamic_bsz(job: Config, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    by_sequences = job.with_values({
        "actor_rollout_ref.actor.ppo_mini_batch_size": 6, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4
    })  # fmt: skip
    changed = by_sequences.with_values({"actor_rollout_ref.actor.use_dynamic_bsz": True})
    assert await passes(cores("trainer", changed), monkeypatch, changed) == [12]


async def test_ppo_max_token_len_per_gpu(job: Config, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = job.with_values({"actor_rollout_ref.actor.ppo_mini_batch_size": 6})
    changed = whole.with_values({"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 60})
    found = await passes(cores("trainer", changed), monkeypatch, changed)
    assert (len(found) > 1, sum(found)) == (True, 12)


async def test_calculate_entropy(job: Config, cores: Cores) -> None:
    changed = job.with_values({"actor_rollout_ref.actor.calculate_entropy": True})
    reported = []
    for config in (job, changed):
        trainer = cores("trainer", config)
        result = await trainer.update(grouped_batch(2, 2), update_config(config), mutation())
        reported.append("actor/entropy" in result.metrics)
    assert reported == [False, True]


async def test_model_dtype(job: Config, cores: Cores) -> None:
    """One value: master weights are float32; anything else is refused."""
    changed = job.with_values({"actor_rollout_ref.actor.fsdp_config.model_dtype": "bf16"})
    assert "fsdp_config.model_dtype=bf16 would lose small updates" in problems(changed)
    assert problems(job) == ""
    assert {weight.dtype for weight in model_of("trainer", cores("trainer", job)).parameters()} == {torch.float32}


async def test_dtype(job: Config, cores: Cores) -> None:
    """bfloat16 compute moves log-probs a little and leaves the weights in float32."""
    changed = job.with_values({"actor_rollout_ref.actor.fsdp_config.dtype": "bfloat16"})
    found = []
    for config in (job, changed):
        answer = await cores("trainer", config).compute_log_probs(
            grouped_batch(), ["log_probs"], temperature=1.0, deadline_s=60
        )
        found.append(answer.ragged("log_probs").values)
    difference = np.abs(found[0] - found[1]).max()
    assert 1e-4 < difference < 0.5
