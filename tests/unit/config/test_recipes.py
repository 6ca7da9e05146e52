"""Each recipe loads, makes sense, and sets what its paper says."""

from __future__ import annotations

from pathlib import Path

import pytest

from argosy.cli.algorithm_docs import RECIPES
from argosy.config import Config, load, validate

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "recipes"


@pytest.fixture
def recipe(base: list[str], request: pytest.FixtureRequest) -> Config:
    """A recipe with a model and data, and nothing else."""
    paths = ("data.train_files", "data.val_files", "actor_rollout_ref.model.path", "trainer.default_local_dir")
    given = [argument for argument in base if argument.split("=")[0] in paths]
    config = load(given, [FOLDER / f"{request.param}.yaml"])
    validate(config)
    return config


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("recipe", [name], indirect=True)


def test_every_recipe_is_listed_and_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(RECIPES)
    assert all(f"of({name!r})".replace("'", '"') in Path(__file__).read_text() for name in RECIPES)


@of("dapo")
def test_dapo_sets_what_section_4_1_says(recipe: Config) -> None:
    actor, rollout = recipe.actor_rollout_ref.actor, recipe.actor_rollout_ref.rollout
    assert recipe.algorithm.adv_estimator == "grpo"
    assert recipe.algorithm.norm_adv_by_std_in_grpo
    assert not recipe.needs_reference, "no KL"
    assert recipe.algorithm.filter_groups.enable
    assert recipe.algorithm.filter_groups.metric == "acc"
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.28)
    assert actor.loss_agg_mode == "token-mean"
    assert (recipe.data.train_batch_size, rollout.n) == (512, 16)
    assert actor.ppo_mini_batch_size * rollout.n == 512
    assert (actor.optim.lr, actor.optim.lr_warmup_steps) == (1e-6, 20)
    buffer = recipe.reward_model.reward_kwargs.overlong_buffer_cfg
    assert recipe.reward_model.reward_manager == "dapo"
    assert (buffer.enable, buffer.len, buffer.penalty_factor) == (True, 4096, 1.0)
    assert recipe.data.max_response_length - (buffer.len or 0) == 16384
    assert (rollout.val_kwargs.temperature, rollout.val_kwargs.top_p) == (1.0, 0.7)


@of("dr_grpo")
def test_dr_grpo_divides_by_constants_only(recipe: Config) -> None:
    actor = recipe.actor_rollout_ref.actor
    assert recipe.algorithm.adv_estimator == "grpo"
    assert not recipe.algorithm.norm_adv_by_std_in_grpo
    assert actor.loss_agg_mode == "seq-mean-token-sum-norm"
    assert actor.loss_scale_factor in (None, recipe.data.max_response_length)
    assert not recipe.needs_reference, "no KL"
    assert (recipe.data.train_batch_size, recipe.actor_rollout_ref.rollout.n) == (128, 8)
    assert actor.ppo_mini_batch_size == recipe.data.train_batch_size
    assert recipe.data.max_response_length == 3000


@of("grpo")
def test_grpo_normalises_groups_and_has_the_kl_in_its_loss(recipe: Config) -> None:
    actor = recipe.actor_rollout_ref.actor
    assert recipe.algorithm.adv_estimator == "grpo"
    assert recipe.algorithm.norm_adv_by_std_in_grpo
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (True, 0.04, "low_var_kl")
    assert actor.loss_agg_mode == "seq-mean-token-mean"
    assert recipe.actor_rollout_ref.rollout.n == 64
    assert recipe.data.train_batch_size * recipe.actor_rollout_ref.rollout.n == 1024
    assert recipe.data.max_response_length == 1024


@of("remax")
def test_remax_samples_one_response_per_prompt(recipe: Config) -> None:
    assert recipe.algorithm.adv_estimator == "remax"
    assert recipe.actor_rollout_ref.rollout.n == 1
    assert recipe.algorithm.use_kl_in_reward
    assert not recipe.actor_rollout_ref.actor.use_kl_loss


@of("ppo")
def test_ppo_has_a_critic_and_the_kl_in_its_reward(recipe: Config) -> None:
    actor = recipe.actor_rollout_ref.actor
    assert recipe.algorithm.adv_estimator == "gae"
    assert (recipe.algorithm.gamma, recipe.algorithm.lam) == (1.0, 0.95)
    assert (recipe.algorithm.use_kl_in_reward, recipe.algorithm.kl_ctrl.kl_coef) == (True, 0.02)
    assert (actor.clip_ratio, actor.ppo_epochs) == (0.2, 1)
    assert recipe.critic.cliprange_value == 0.2
    assert recipe.data.train_batch_size // actor.ppo_mini_batch_size == 8
