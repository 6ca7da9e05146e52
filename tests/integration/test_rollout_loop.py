"""Greedy baselines, dynamic sampling, rollout correction, overlong penalty: through real services in one process."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import pytest

from argosy.cli.main import main
from argosy.controller.ledger import read_segment
from support.toy import ToyJob

pytestmark = pytest.mark.xdist_group("rollout_loop")

SMALL = (
    "argosy.placement=inprocess",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.use_kl_loss=False",
    "trainer.val_before_train=False",
    "trainer.logger=[file]",
    "argosy.export_hf=false",
)
TWO_RANKS = ("trainer.n_gpus_per_node=2", "argosy.placement=local", "argosy.trainer.rank_timeout_s=60")
CORRECTION = "algorithm.rollout_correction"


def train(job: ToyJob, run: str, *overrides: str, steps: int = 2) -> list[dict[str, Any]]:
    """The metrics of each step. In this process, unless the trainer has two ranks."""
    arguments = (*SMALL, f"trainer.total_training_steps={steps}", *overrides)
    if TWO_RANKS[0] in overrides:
        code, out, err = job.run(run, *arguments)
        assert code == 0, out + err
    else:
        words = job.command(run, *arguments)
        assert main(words[words.index("train") :]) == 0
    return job.metrics(run)


def states(job: ToyJob, run: str, step: int) -> Counter[str]:
    return Counter(row["state"] for row in read_segment(job.folder / run / "ledger", step))


def test_remax_compares_with_greedy_answers(toy_job: ToyJob) -> None:
    rows = train(toy_job, "remax", "algorithm.adv_estimator=remax")
    assert [row["rollout/greedy_answers"] for row in rows] == [8.0, 8.0]
    assert states(toy_job, "remax", 1) == {"trained": 32, "baseline": 8}
    for row in rows:
        difference = row["critic/rewards/mean"] - row["critic/baseline/mean"]
        assert row["critic/advantages/mean"] == pytest.approx(difference, abs=0.02)  # long answers weigh more in it
    assert rows[0]["rollout/generated_tokens"] > rows[0]["training/trained_tokens"]


@pytest.mark.parametrize("ranks", [(), TWO_RANKS], ids=["one rank", "two ranks"])
def test_c13_a_resumed_run_filters_the_same_groups(toy_job: ToyJob, ranks: tuple[str, ...]) -> None:
    """Rounds differ in number from step to step; what is trained after a resume is bit for bit the same."""
    dynamic = (
        "algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc", "data.gen_batch_size=5",
        "actor_rollout_ref.rollout.n=2", "data.train_batch_size=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4", "trainer.save_freq=2",
        *ranks,
    )  # fmt: skip
    name = f"filtered-{len(ranks)}"
    rows = train(toy_job, name, *dynamic, steps=4)
    assert sum(row["train/num_gen_batches"] for row in rows) > 4
    assert states(toy_job, name, 1)["trained"] == 8
    shutil.copytree(toy_job.folder / name, toy_job.folder / f"{name}-again")
    train(
        toy_job, f"{name}-again", *dynamic, "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={toy_job.folder}/{name}-again/global_step_2", steps=4,
    )  # fmt: skip
    assert toy_job.trained(f"{name}-again") == toy_job.trained(name)
    for step in (3, 4):
        ours, theirs = (read_segment(toy_job.folder / run / "ledger", step) for run in (name, f"{name}-again"))
        keep = ("sample_id", "state", "score", "reason", "token_count")
        assert [{k: row[k] for k in keep} for row in ours] == [{k: row[k] for k in keep} for row in theirs]


def test_importance_weights_reach_the_loss(toy_job: ToyJob) -> None:
    """Engine and trainer agree here, so a truncation at 1/2 halves the policy loss, and one at 2 does nothing."""
    plain = train(toy_job, "weighing-plain", steps=1)[0]
    whole, half = (
        train(toy_job, f"weights-{bound}", f"{CORRECTION}.rollout_is=token",
              f"{CORRECTION}.rollout_is_threshold={bound}", steps=1)[0]
        for bound in ("2.0", "0.5")
    )  # fmt: skip
    assert whole["rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=1e-4)
    assert whole["actor/pg_loss"] == pytest.approx(plain["actor/pg_loss"], abs=1e-5)
    assert half["rollout_corr/rollout_is_mean"] == pytest.approx(0.5)
    assert half["actor/grad_norm"] == pytest.approx(0.5 * whole["actor/grad_norm"], rel=1e-3)
    assert abs(whole["rollout_corr/kl"]) < 1e-4
    assert "rollout_corr/kl" not in plain


def test_bypass_mode_saves_the_pass_and_learns_the_same(toy_job: ToyJob) -> None:
    """Two mini-batches: π_old is recomputed in one run, the engine's in the other; they agree to rounding."""
    halves = ("actor_rollout_ref.actor.ppo_mini_batch_size=4",)
    recomputed = train(toy_job, "recomputed", *halves, steps=1)[0]
    bypass = train(toy_job, "bypass", *halves, f"{CORRECTION}.bypass_mode=True", steps=1)[0]
    assert bypass["rollout_corr/kl"] == pytest.approx(recomputed["actor/ppo_kl"], abs=1e-3)
    assert bypass["actor/optimizer_steps"] == recomputed["actor/optimizer_steps"] == 2
    assert bypass["actor/pg_loss"] == pytest.approx(recomputed["actor/pg_loss"], abs=1e-4)
    assert bypass["actor/grad_norm"] == pytest.approx(recomputed["actor/grad_norm"], rel=1e-3)
    reinforce = train(
        toy_job, "reinforce", *halves, f"{CORRECTION}.bypass_mode=True", f"{CORRECTION}.loss_type=reinforce",
        f"{CORRECTION}.rollout_is=sequence", steps=1,
    )[0]  # fmt: skip
    assert reinforce["rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=0.3)
    assert reinforce["actor/grad_norm"] > 0


def test_rejection_takes_sequences_out_of_the_update(toy_job: ToyJob) -> None:
    """A threshold below rounding: nearly everything is rejected, the books say so, and the run goes on."""
    rows = train(
        toy_job, "rejected", f"{CORRECTION}.rollout_rs=seq_max_k2", f"{CORRECTION}.rollout_rs_threshold=1e-22"
    )  # fmt: skip
    for step, row in enumerate(rows, 1):
        share = row["rollout_corr/rollout_rs_seq_masked_fraction"]
        assert share > 0.5
        assert states(toy_job, "rejected", step)["dropped"] == round(32 * share)


def test_overlong_answers_lose_reward(toy_job: ToyJob) -> None:
    rows = train(
        toy_job, "overlong", "reward_model.reward_manager=dapo",
        "+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True",
        "+reward_model.reward_kwargs.overlong_buffer_cfg.len=4",
        "+reward_model.reward_kwargs.overlong_buffer_cfg.log=True",
    )  # fmt: skip
    for row in rows:
        penalty = row["reward/overlong_reward/mean"]
        assert -1 <= penalty < 0
        assert row["critic/score/mean"] == pytest.approx(row["critic/raw_score/mean"] + penalty, abs=1e-6)
        assert row["critic/rewards/mean"] == pytest.approx(row["critic/score/mean"], abs=1e-6)
        assert row["critic/raw_score/mean"] == pytest.approx(row["reward/acc/mean"], abs=1e-6)
