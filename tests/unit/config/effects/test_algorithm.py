"""`algorithm.*`: from rewards to advantages."""

from __future__ import annotations

import numpy as np
import pytest

from argosy.algorithms.kl_reward import KLController
from argosy.config import Config
from argosy.controller.launch.plan import services_of
from argosy.controller.stages.advantage import add_advantages, add_reward_parts, build_batch, subtract_kl
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import ConfigError
from argosy.types.ids import GroupId, PolicyVersion, SampleId
from argosy.types.ragged import Ragged
from argosy.types.records import Completion, FinishReason, Prompt, Scored, VersionRun
from unit.config.effects.recorded import run_recorded
from unit.config.effects.support import problems


def scored_batch() -> TrajectoryBatch:
    """One group with scores 0, 1 and 5, two tokens each; d = log p - log q is 2."""
    samples = [SampleId(0, 0, k) for k in range(3)]
    run = VersionRun(PolicyVersion("l0", 0, "00"), 2)
    completions = {key: Completion(key, (5, 6), (-0.1, -0.1), (run,), FinishReason.STOP) for key in samples}
    outcomes = {key: Scored(score) for key, score in zip(samples, (0.0, 1.0, 5.0), strict=True)}
    batch = build_batch([Prompt(GroupId(0, 0), (3, 4), "s", "")], completions, outcomes)
    offsets = batch.ragged("response_ids").offsets
    batch = batch.with_column("old_log_probs", Ragged(np.full(6, -1.0), offsets))
    return batch.with_column("ref_log_probs", Ragged(np.full(6, -3.0), offsets))


def advantages(config: Config) -> list[float]:
    batch, _ = add_advantages(config, scored_batch())
    return [round(float(row[0]), 4) for row in batch.ragged("advantages")]


def test_adv_estimator(job: Config) -> None:
    """It chooses the estimator; a name that isn't one is refused at the start."""
    changed = job.with_values({"algorithm.adv_estimator": "dr_grpo"})
    assert advantages(changed) == [-2.0, -1.0, 3.0]
    assert advantages(job) == pytest.approx([-0.7559, -0.378, 1.1339], abs=1e-3)
    unknown = job.with_values({"algorithm.adv_estimator": "grpoo"})
    assert "algorithm.adv_estimator: got 'grpoo'" in problems(unknown)
    with pytest.raises(ConfigError, match="grpoo"):
        advantages(unknown)


def test_norm_adv_by_std_in_grpo(job: Config) -> None:
    changed = job.with_values({"algorithm.norm_adv_by_std_in_grpo": False})
    assert advantages(changed) == [-2.0, -1.0, 3.0]
    assert advantages(job) == pytest.approx([-0.7559, -0.378, 1.1339], abs=1e-3)


def with_ramp(column: str) -> TrajectoryBatch:
    """The batch with a column of 0.1, 0.2, 0.3 …"""
    batch = scored_batch()
    return batch.with_column(column, Ragged(0.1 * np.arange(1, 7), batch.ragged("response_ids").offsets))


def test_gamma(job: Config) -> None:
    """A discounted score is smaller at the first token than at the last."""
    plain = job.with_values({"algorithm.adv_estimator": "reinforce_plus_plus"})
    for config, same in ((plain, True), (plain.with_values({"algorithm.gamma": 0.5}), False)):
        batch, _ = add_advantages(config, scored_batch())
        first, last = batch.ragged("advantages")[2].tolist()
        assert (first == pytest.approx(last)) is same


def test_lam(job: Config) -> None:
    """With λ = 0 a return is the reward and the next value: 0 + 0.2 and 0 + 0 in the first response."""
    plain = job.with_values({"algorithm.adv_estimator": "gae"})
    for config, wanted in ((plain, [0.0, 0.0]), (plain.with_values({"algorithm.lam": 0.0}), [0.2, 0.0])):
        batch, _ = add_advantages(config, with_ramp("values"))
        assert batch.ragged("returns")[0].tolist() == pytest.approx(wanted, abs=1e-6)


def with_parts(config: Config) -> list[float]:
    """Advantages of three responses: acc prefers the last one, form the first one."""
    batch = scored_batch()
    parts = ({"acc": 0.0, "form": 1.0}, {"acc": 0.0, "form": 0.0}, {"acc": 1.0, "form": 0.0})
    outcomes = {sample: Scored(0.0, part) for sample, part in zip(batch.sample_ids, parts, strict=True)}
    batch, _ = add_advantages(config, add_reward_parts(config, batch, outcomes))
    return [float(row[0]) for row in batch.ragged("advantages")]


def test_gdpo_reward_keys(job: Config) -> None:
    gdpo = job.with_values({"algorithm.adv_estimator": "gdpo"})
    low, middle, high = with_parts(gdpo.with_values({"algorithm.gdpo_reward_keys": ["acc"]}))
    assert low == pytest.approx(middle)
    assert low < high
    with pytest.raises(ConfigError, match="gdpo_reward_keys"):
        with_parts(gdpo)


def test_gdpo_reward_weights(job: Config) -> None:
    """Equal weights make the first and the last response equal; weights of 1 and 0.5 don't."""
    gdpo = job.with_values({"algorithm.adv_estimator": "gdpo", "algorithm.gdpo_reward_keys": ["acc", "form"]})
    first, _, last = with_parts(gdpo)
    assert first == pytest.approx(last)
    first, _, last = with_parts(gdpo.with_values({"algorithm.gdpo_reward_weights": [1.0, 0.5]}))
    assert first < last


async def test_use_kl_in_reward(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference and the trainer's own pass run, each timed by its name, and the KL lowers the rewards."""
    changed = job.with_values({"algorithm.use_kl_in_reward": True, "trainer.default_local_dir": f"{job.run_folder}-2"})
    assert ("reference" in services_of(job), "reference" in services_of(changed)) == (False, True)
    without, with_kl = [await run_recorded(config, monkeypatch) for config in (job, changed)]
    assert (without.metrics("actor/reward_kl_penalty"), len(with_kl.metrics("actor/reward_kl_penalty"))) == ([], 2)
    rewards = [recorded.metrics("critic/rewards/mean")[0] for recorded in (without, with_kl)]
    assert rewards[1] < rewards[0]
    for name in ("timing_s/old_log_prob", "timing_s/ref", "timing_per_token_ms/old_log_prob"):
        assert [len(recorded.metrics(name)) for recorded in (without, with_kl)] == [0, 2]


def test_kl_penalty(job: Config) -> None:
    found = {}
    for kind in ("kl", "abs", "mse", "low_var_kl"):
        changed = job.with_values({"algorithm.kl_penalty": kind})
        batch, _ = subtract_kl(changed, scored_batch(), KLController(1.0))
        found[kind] = round(-float(batch.ragged("token_rewards").values[0]), 4)
    assert found == {"kl": 2.0, "abs": 2.0, "mse": 2.0, "low_var_kl": round(np.exp(-2) + 1, 4)}


async def coefficients(job: Config, values: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """β of two steps; each step's KL is 0.4 nats per token over 8 sequences."""
    recorded = await run_recorded(job.with_values({"algorithm.use_kl_in_reward": True, **values}), monkeypatch)
    assert recorded.metrics("actor/reward_kl_penalty") == pytest.approx([0.4, 0.4])
    return recorded.metrics("actor/reward_kl_penalty_coeff")


async def test_kl_coef(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await coefficients(job, {"algorithm.kl_ctrl.kl_coef": 0.25}, monkeypatch) == [0.25, 0.25]


async def test_kl_ctrl_type(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adaptive: after the first step β grows by 0.2 · 8 / 10000."""
    found = await coefficients(job, {"algorithm.kl_ctrl.type": "adaptive"}, monkeypatch)
    assert found == pytest.approx([0.001, 0.001 * (1 + 0.2 * 8 / 10000)])


async def test_kl_ctrl_horizon(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"algorithm.kl_ctrl.type": "adaptive", "algorithm.kl_ctrl.horizon": 16}
    assert await coefficients(job, values, monkeypatch) == pytest.approx([0.001, 0.0011])


async def test_kl_ctrl_target_kl(job: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target above the KL makes β fall."""
    values = {"algorithm.kl_ctrl.type": "adaptive", "algorithm.kl_ctrl.horizon": 16, "algorithm.kl_ctrl.target_kl": 9.0}
    assert await coefficients(job, values, monkeypatch) == pytest.approx([0.001, 0.0009])
