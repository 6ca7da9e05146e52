"""`critic.*`: which model values are of, how it is trained, and how it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from argosy.config import Config, load
from argosy.controller.launch.plan import services_of
from argosy.controller.prepare import PreparedRun
from argosy.controller.stages.values import value_update_config
from argosy.modeling.tiny import save_tiny_model
from argosy.trainer.build import critic_options_from
from argosy.trainer.minibatch import mini_batches
from argosy.trainer.objective import ValueColumns, value_objective
from argosy.trainer.optimizer import MasterOptimizer
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import ConfigError, InvalidInputError
from argosy.types.ragged import Ragged
from argosy.types.records import GlobalNormalizer
from support.training import grouped_batch, mutation
from unit.config.effects.recorded import run_recorded
from unit.config.effects.support import Core, Cores, build, model_of, problems
from unit.config.effects.test_model import with_another_template

Patch = pytest.MonkeyPatch
BASE = Config().with_values({
    "algorithm.adv_estimator": "gae", "actor_rollout_ref.model.path": "m", "data.max_response_length": 10,
    "critic.optim.lr": 0.5, "critic.optim.weight_decay": 0.0, "trainer.total_training_steps": 10,
    "actor_rollout_ref.actor.optim.lr": 0.125, "actor_rollout_ref.actor.grad_clip": 7.0,
})  # fmt: skip
"""The actor's numbers differ, so that a critic that took them would be seen."""


@pytest.fixture
def job(job: Config) -> Config:
    """The tiny job, as PPO."""
    return job.with_values({"algorithm.adv_estimator": "gae", "argosy.critic.device": "cpu"})


# -- whether it runs, and of what model ------------------------------------------------------------------------------


async def test_enable(job: Config, monkeypatch: Patch) -> None:
    """null: where values are read. It may be said, but not otherwise than the estimator needs."""
    on = job.with_values({"critic.enable": True})
    assert (services_of(on)["critic"], services_of(job)["critic"]) == (1, 1)
    assert "critic.enable: got false" in problems(job.with_values({"critic.enable": False}))
    grpo = job.with_values({"algorithm.adv_estimator": "grpo"})
    assert "critic" not in services_of(grpo)
    assert "reads no values" in problems(grpo.with_values({"critic.enable": True}))
    recorded = await run_recorded(on, monkeypatch)
    assert len(recorded.critic_updates) == 2
    assert set(recorded.critic_batches[0].ragged("values").values) == {np.float32(0.25)}
    assert recorded.metrics("critic/values/mean") == [0.25, 0.25]


async def test_path(job: Config, cores: Cores, tmp_path: Path) -> None:
    """null takes the actor's."""
    other = save_tiny_model(tmp_path / "other", seed=1)
    changed = job.with_values({"critic.model.path": str(other)})
    weights = [model_of("critic", cores("critic", config)).get_input_embeddings().weight for config in (job, changed)]
    assert not torch.equal(*weights)
    assert torch.equal(weights[0], model_of("trainer", cores("trainer", job)).get_input_embeddings().weight)


async def test_tokenizer_path(job: Config, cores: Cores, tmp_path: Path) -> None:
    changed = job.with_values({"critic.model.tokenizer_path": str(with_another_template(tmp_path / "tokenizer"))})
    for config, name in ((job, "own"), (changed, "other")):
        await cores("critic", config).export_hf(str(tmp_path / name), mutation())
    templates = [(tmp_path / name / "chat_template.jinja").read_text() for name in ("own", "other")]
    assert ("<|im_start|>" in templates[0], templates[1]) == (True, "Q: {{ messages[0]['content'] }} A:")


async def test_override_config(job: Config, cores: Cores) -> None:
    changed = job.with_values({"critic.model.override_config": {"rms_norm_eps": 0.5}})
    found = [model_of("critic", cores("critic", config)).config.rms_norm_eps for config in (job, changed)]
    assert (found[0] < 0.5, found[1]) == (True, 0.5)


def test_trust_remote_code(job: Config, monkeypatch: Patch) -> None:
    """null takes the actor's."""
    import transformers

    asked: list[bool] = []

    def load_model(*_: object, trust_remote_code: bool, **__: Any) -> None:
        asked.append(trust_remote_code)
        raise OSError("only asked")

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", load_model)
    trusted = {"actor_rollout_ref.model.trust_remote_code": True}
    own = {"critic.model.trust_remote_code": True}
    refused = {**trusted, "critic.model.trust_remote_code": False}
    for values in ({}, trusted, own, refused):
        with pytest.raises(InvalidInputError, match="only asked"):
            build("critic", job.with_values(values))
    assert asked == [False, True, True, False]


async def test_enable_gradient_checkpointing(job: Config, cores: Cores) -> None:
    for value in (True, False):
        changed = job.with_values({"critic.model.enable_gradient_checkpointing": value})
        assert model_of("critic", cores("critic", changed)).base.is_gradient_checkpointing is value


# -- the objective ---------------------------------------------------------------------------------------------------


def loss(config: Config, errors: tuple[float, ...], owner: tuple[int, ...] | None = None) -> float:
    """Of values that were 0 and are now `errors`, with returns of 0."""
    values = torch.tensor(errors, requires_grad=True)
    zeros, owners = torch.zeros(len(errors)), torch.tensor(owner or (0,) * len(errors))
    sequences = int(owners.max()) + 1
    result = value_objective(
        values, ValueColumns(zeros - 2.0, torch.ones(len(errors)), zeros), owners, sequences,
        value_update_config(config).loss, GlobalNormalizer(float(len(errors)), float(sequences)),
    )  # fmt: skip
    return round(result.loss.item(), 4)


def test_cliprange_value() -> None:
    """A value that moved from 0 to -1 on its way to -2 counts as if it had moved by the clip range only."""
    changed = BASE.with_values({"critic.cliprange_value": 0.25})
    assert [loss(config, (-1.0,)) for config in (BASE, changed)] == [0.5 * 1.5**2, round(0.5 * 1.75**2, 4)]


def test_loss_agg_mode() -> None:
    """Sequences of 1 and 3 tokens whose losses are 2 and 4.5 each; null takes the actor's."""
    found = {}
    for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"):
        changed = BASE.with_values({"critic.loss_agg_mode": mode})
        found[mode] = loss(changed, (0.0, 1.0, 1.0, 1.0), owner=(0, 1, 1, 1))
    assert found == {
        "token-mean": 3.875, "seq-mean-token-sum": 7.75, "seq-mean-token-mean": 3.25, "seq-mean-token-sum-norm": 0.775
    }  # fmt: skip
    actors = BASE.with_values({"actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum"})
    assert value_update_config(actors).loss.loss_agg_mode == "seq-mean-token-sum"


# -- the walk over the batch -----------------------------------------------------------------------------------------

WALK = BASE.with_values({
    "actor_rollout_ref.rollout.n": 2, "actor_rollout_ref.actor.ppo_mini_batch_size": 6, "data.train_batch_size": 6
})  # fmt: skip


def rows(config: Config) -> list[list[int]]:
    """Of each optimizer step, for 12 sequences."""
    return [part.tolist() for part in mini_batches(grouped_batch(6, 2), value_update_config(config), 0)]


def test_ppo_mini_batch_size() -> None:
    """In prompts; null takes the actor's."""
    changed = WALK.with_values({"critic.ppo_mini_batch_size": 2})
    assert [len(part) for part in rows(WALK)] == [12]
    assert [len(part) for part in rows(changed)] == [4, 4, 4]


def test_ppo_epochs() -> None:
    changed = WALK.with_values({"critic.ppo_epochs": 3})
    assert (len(rows(WALK)), len(rows(changed))) == (1, 3)
    assert len(rows(WALK.with_values({"actor_rollout_ref.actor.ppo_epochs": 2}))) == 2


def test_shuffle() -> None:
    changed = WALK.with_values({"critic.shuffle": True})
    assert rows(WALK) == [list(range(12))]
    assert rows(changed) != rows(WALK)
    assert sorted(rows(changed)[0]) == list(range(12))


def test_data_loader_seed() -> None:
    shuffled = WALK.with_values({"critic.shuffle": True})
    changed = shuffled.with_values({"critic.data_loader_seed": 5})
    assert rows(changed) != rows(shuffled)
    assert rows(changed) == rows(shuffled.with_values({"argosy.seed": 5}))


# -- how it computes -------------------------------------------------------------------------------------------------


def value_batch() -> TrajectoryBatch:
    """12 sequences with values and returns."""
    batch = grouped_batch(6, 2)
    ids = batch.ragged("response_ids")
    ones = Ragged(np.ones(len(ids.values), np.float32), ids.offsets)
    return batch.with_column("values", ones).with_column("returns", ones)


async def passes(cores: Cores, monkeypatch: Patch, config: Config) -> dict[str, list[int]]:
    """Sequences in each forward pass of one update, and of one computation of values, of 12 sequences."""
    core: Core = cores("critic", config)
    counts: list[int] = []
    real = core._backend._model.response_values

    def counted(packed: Any) -> Tensor:
        counts.append(packed.sequence_count)
        return real(packed)  # type: ignore[no-any-return]

    monkeypatch.setattr(core._backend._model, "response_values", counted)
    await core.update(value_batch(), value_update_config(config), mutation())
    found = {"update": list(counts)}
    counts.clear()
    await core.compute_values(value_batch(), deadline_s=60)
    return found | {"values": list(counts)}


@pytest.fixture
def whole(job: Config) -> Config:
    """12 sequences in one mini-batch."""
    return job.with_values({"critic.ppo_mini_batch_size": 6})


async def test_ppo_micro_batch_size_per_gpu(whole: Config, cores: Cores, monkeypatch: Patch) -> None:
    changed = whole.with_values({"critic.ppo_micro_batch_size_per_gpu": 4})
    assert await passes(cores, monkeypatch, whole) == {"update": [12], "values": [12]}
    assert await passes(cores, monkeypatch, changed) == {"update": [4, 4, 4], "values": [4, 4, 4]}


async def test_forward_micro_batch_size_per_gpu(whole: Config, cores: Cores, monkeypatch: Patch) -> None:
    changed = whole.with_values({
        "critic.forward_micro_batch_size_per_gpu": 6, "critic.ppo_micro_batch_size_per_gpu": 4
    })  # fmt: skip
    assert await passes(cores, monkeypatch, changed) == {"update": [4, 4, 4], "values": [6, 6]}


async def test_use_dynamic_bsz(whole: Config, cores: Cores, monkeypatch: Patch) -> None:
    """null takes the actor's."""
    by_sequences = whole.with_values({"critic.ppo_micro_batch_size_per_gpu": 4})
    changed = by_sequences.with_values({"critic.use_dynamic_bsz": True})
    actors = by_sequences.with_values({"actor_rollout_ref.actor.use_dynamic_bsz": True})
    assert (await passes(cores, monkeypatch, changed))["update"] == [12]
    assert (await passes(cores, monkeypatch, actors))["update"] == [12]


async def test_ppo_max_token_len_per_gpu(whole: Config, cores: Cores, monkeypatch: Patch) -> None:
    changed = whole.with_values({"critic.ppo_max_token_len_per_gpu": 60})
    for counts in (await passes(cores, monkeypatch, changed)).values():
        assert (len(counts) > 1, sum(counts)) == (True, 12)


async def test_forward_max_token_len_per_gpu(whole: Config, cores: Cores, monkeypatch: Patch) -> None:
    changed = whole.with_values({"critic.forward_max_token_len_per_gpu": 60})
    found = await passes(cores, monkeypatch, changed)
    assert (found["update"], len(found["values"]) > 1, sum(found["values"])) == ([12], True, 12)


async def test_model_dtype(job: Config, cores: Cores) -> None:
    """One value: master weights are float32; anything else is refused."""
    changed = job.with_values({"critic.fsdp_config.model_dtype": "bf16"})
    assert "critic.fsdp_config.model_dtype=bf16 would lose small updates" in problems(changed)
    assert problems(job) == ""
    assert {weight.dtype for weight in model_of("critic", cores("critic", job)).parameters()} == {torch.float32}


async def test_dtype(job: Config, cores: Cores) -> None:
    """bfloat16 compute moves values a little and leaves the weights in float32."""
    changed = job.with_values({"critic.fsdp_config.dtype": "bfloat16"})
    found = []
    for config in (job, changed):
        core = cores("critic", config)
        with torch.no_grad():
            model_of("critic", core).score.weight.fill_(0.1)
        answer = await core.compute_values(grouped_batch(), deadline_s=60)
        found.append(answer.ragged("values").values)
        assert {weight.dtype for weight in model_of("critic", core).parameters()} == {torch.float32}
    difference = np.abs(found[0] - found[1]).max()
    assert 1e-4 < difference < 0.5


# -- the optimizer ---------------------------------------------------------------------------------------------------


def weight_after(config: Config, *gradients: float) -> float:
    """A weight that starts at 1, after one optimizer step per gradient."""
    weight = nn.Parameter(torch.ones(1))
    options = critic_options_from(config).optimizer
    optimizer = MasterOptimizer({"weight": weight}, options)
    for step, gradient in enumerate(gradients):
        weight.grad = torch.tensor([gradient])
        optimizer.step(options.schedule.rate(step))
    return weight.item()


def rates(config: Config) -> list[float]:
    """Learning rates of steps 0 to 10."""
    schedule = critic_options_from(config).optimizer.schedule
    return [round(schedule.rate(step), 4) for step in range(11)]


def test_lr() -> None:
    changed = BASE.with_values({"critic.optim.lr": 0.25})
    assert [weight_after(config, 1.0) for config in (BASE, changed)] == pytest.approx([0.5, 0.75])
    assert Config().critic.optim.lr == 1e-5  # verl's default


def test_weight_decay() -> None:
    changed = BASE.with_values({"critic.optim.weight_decay": 0.5})
    assert [weight_after(config, 0.0) for config in (BASE, changed)] == pytest.approx([1.0, 0.75])


def test_betas() -> None:
    """Without momentum a gradient of 0 moves nothing."""
    changed = BASE.with_values({"critic.optim.betas": [0.0, 0.999]})
    assert weight_after(changed, 1.0, 0.0) == pytest.approx(0.5)
    assert weight_after(BASE, 1.0, 0.0) < 0.4


def test_eps() -> None:
    """The step is lr · g / (|g| + ε)."""
    changed = BASE.with_values({"critic.optim.eps": 1.0})
    assert weight_after(changed, 1.0) == pytest.approx(0.75)


@pytest.mark.parametrize("key", ["critic.grad_clip", "critic.optim.clip_grad"])
def test_grad_clip(key: str) -> None:
    """With ε = 1 the step tells how large the clipped gradient was. The newer name sets the same."""
    large = BASE.with_values({"critic.optim.eps": 1.0})
    changed = load([f"{key}=0.25", "critic.optim.lr=0.5", "critic.optim.eps=1.0", "critic.optim.weight_decay=0"])
    assert weight_after(large, 3.0) == pytest.approx(1 - 0.5 * 1.0 / 2.0)
    assert weight_after(changed, 3.0) == pytest.approx(1 - 0.5 * 0.25 / 1.25)


def test_lr_warmup_steps() -> None:
    changed = BASE.with_values({"critic.optim.lr_warmup_steps": 4})
    assert rates(BASE)[:5] == [0.5] * 5
    assert rates(changed)[:6] == [0.0, 0.125, 0.25, 0.375, 0.5, 0.5]


def test_lr_warmup_steps_ratio() -> None:
    changed = BASE.with_values({"critic.optim.lr_warmup_steps_ratio": 0.2})
    assert rates(changed)[:4] == [0.0, 0.25, 0.5, 0.5]


@pytest.mark.parametrize("key", ["critic.optim.lr_scheduler_type", "critic.optim.warmup_style"])
def test_lr_scheduler_type(key: str) -> None:
    """By both names; each shape has its own middle."""
    middles = {}
    for shape in ("constant", "linear", "cosine", "wsd"):
        changed = load([f"{key}={shape}", "critic.optim.lr=0.5", "trainer.total_training_steps=10"])
        middles[shape] = rates(changed)[7:]
    assert middles == {
        "constant": [0.5, 0.5, 0.5, 0.5], "linear": [0.15, 0.1, 0.05, 0.0],
        "cosine": [0.1031, 0.0477, 0.0122, 0.0], "wsd": [0.5, 0.5, 0.5, 0.0],
    }  # fmt: skip


def test_min_lr_ratio() -> None:
    linear = BASE.with_values({"critic.optim.lr_scheduler_type": "linear"})
    changed = linear.with_values({"critic.optim.min_lr_ratio": 0.5})
    assert (rates(linear)[10], rates(changed)[10]) == (0.0, 0.25)


def test_num_cycles() -> None:
    cosine = BASE.with_values({"critic.optim.lr_scheduler_type": "cosine"})
    changed = cosine.with_values({"critic.optim.num_cycles": 1.0})
    assert (rates(cosine)[10], rates(changed)[10]) == (0.0, 0.5)
    assert rates(changed)[5] == 0.0


def test_total_training_steps(job: Config) -> None:
    """The schedule's length; without it the run's own length, which the controller fills in."""
    linear = BASE.with_values({"critic.optim.lr_scheduler_type": "linear"})
    changed = linear.with_values({"critic.optim.total_training_steps": 5})
    assert (rates(linear)[5], rates(changed)[5]) == (0.25, 0.0)
    filled = PreparedRun(job).config.critic.optim.total_training_steps
    kept = PreparedRun(job.with_values({"critic.optim.total_training_steps": 7})).config
    assert (filled, kept.critic.optim.total_training_steps) == (2, 7)


def test_optimizer() -> None:
    changed = BASE.with_values({"critic.optim.optimizer": "nonsense"})
    with pytest.raises(ConfigError, match="unknown optimizer nonsense"):
        weight_after(changed, 1.0)


def test_optimizer_impl() -> None:
    changed = BASE.with_values({"critic.optim.optimizer_impl": "nonsense.optim"})
    with pytest.raises(ConfigError, match=r"AdamW of nonsense\.optim"):
        weight_after(changed, 1.0)


def test_override_optimizer_config() -> None:
    changed = BASE.with_values({"critic.optim.override_optimizer_config": {"eps": 1.0}})
    assert weight_after(changed, 1.0) == pytest.approx(0.75)
