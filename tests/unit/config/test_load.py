"""Order, files, aliases, warnings, saving."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from argosy.config import Config, load, load_resolved
from argosy.config.convert import leaves
from argosy.config.keys import HONOURED
from argosy.types.errors import ConfigError

Loader = Callable[..., tuple[Config, list[str]]]


def test_defaults_are_those_of_verl() -> None:
    config = load([])
    actor = config.actor_rollout_ref.actor
    assert (config.data.max_prompt_length, config.data.max_response_length, config.data.train_batch_size) == (
        512,
        512,
        1024,
    )
    assert (actor.ppo_mini_batch_size, actor.ppo_epochs, actor.clip_range, actor.clip_ratio_c) == (
        256,
        1,
        (0.2, 0.2),
        3.0,
    )
    assert (actor.loss_agg_mode, actor.entropy_coeff, actor.grad_clip) == (None, 0.0, 1.0)
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (False, 0.001, "low_var_kl")
    assert (actor.optim.lr, actor.optim.weight_decay, actor.optim.betas) == (1e-6, 0.01, (0.9, 0.999))
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.temperature, rollout.top_p, rollout.top_k) == (1.0, 1.0, -1)
    assert (rollout.val_kwargs.do_sample, rollout.val_kwargs.n) == (False, 1)
    kl = config.algorithm.kl_ctrl
    assert (config.algorithm.adv_estimator, kl.type, kl.kl_coef, kl.horizon, kl.target_kl) == (
        "gae",
        "fixed",
        0.001,
        10000,
        0.1,
    )
    trainer = config.trainer
    assert (trainer.total_epochs, trainer.save_freq, trainer.test_freq, trainer.resume_mode) == (30, -1, -1, "auto")
    assert config == Config().with_values({"trainer.default_local_dir": "checkpoints/argosy/default"})


def test_later_wins(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("data:\n  seed: 1\n  train_batch_size: 2\n  max_prompt_length: 3\n")
    (tmp_path / "b.yaml").write_text("data:\n  seed: 4\n  train_batch_size: 5\n")
    config = load(["data.seed=6", "data.seed=7"], [tmp_path / "a.yaml", tmp_path / "b.yaml"])
    assert (config.data.seed, config.data.train_batch_size, config.data.max_prompt_length) == (7, 5, 3)


def test_tilde_takes_the_default_again(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("data:\n  seed: 1\n  train_batch_size: 2\n")
    config = load(["~data.seed"], [tmp_path / "a.yaml"])
    assert (config.data.seed, config.data.train_batch_size) == (None, 2)
    assert load(["~data"], [tmp_path / "a.yaml"]).data == Config().data


def test_run_folder_follows_the_names() -> None:
    config = load(["trainer.project_name=p", "trainer.experiment_name=e"])
    assert config.trainer.default_local_dir == "checkpoints/p/e"
    assert config.run_folder == Path("checkpoints/p/e")
    assert Config().run_folder == Path("checkpoints/argosy/default")


def test_interpolation() -> None:
    config = load(["trainer.default_local_dir=/runs/${trainer.experiment_name}/x", "trainer.experiment_name=e"])
    assert config.trainer.default_local_dir == "/runs/e/x"


def test_other_spellings_act_on_our_keys(load_with_warnings: Loader) -> None:
    config, warnings = load_with_warnings(
        "actor_rollout_ref.rollout.dtype=bfloat16",
        "reward.num_workers=3",
        "reward.custom_reward_function.path=/a=b.py",
        "actor_rollout_ref.actor.optim.warmup_style=cosine",
        "actor_rollout_ref.actor.optim.clip_grad=0.5",
        "trainer.device=cuda",
    )
    assert warnings == []
    assert config.argosy.rollout.dtype == "bfloat16"
    assert config.argosy.reward.worker_count == 3
    assert config.custom_reward_function.path == "/a=b.py"
    assert config.actor_rollout_ref.actor.optim.lr_scheduler_type == "cosine"
    assert config.actor_rollout_ref.actor.grad_clip == 0.5
    devices = [config.argosy.trainer.device, config.argosy.rollout.device, config.argosy.reference.device]
    assert devices == ["cuda"] * 3


def test_other_spellings_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "reward:\n  num_workers: 3\n  custom_reward_function: {path: f.py, reward_kwargs: {a: {b: 1}}}\n"
    )
    config = load([], [tmp_path / "a.yaml"])
    assert config.argosy.reward.worker_count == 3
    assert config.custom_reward_function.path == "f.py"
    assert config.custom_reward_function.reward_kwargs == {"a": {"b": 1}}


def test_clip_ratio_acts_on_both_sides_unless_set() -> None:
    """verl's low/high default to 0.2 and so hide clip_ratio: a silent fault that isn't repeated here."""
    clip = "actor_rollout_ref.actor.clip_ratio"
    assert load([f"{clip}=0.1"]).actor_rollout_ref.actor.clip_range == (0.1, 0.1)
    assert load([f"{clip}=0.1", f"{clip}_high=0.28"]).actor_rollout_ref.actor.clip_range == (0.1, 0.28)


def test_a_key_without_effect_is_warned_about_with_its_reason(load_with_warnings: Loader) -> None:
    _, warnings = load_with_warnings("actor_rollout_ref.rollout.gpu_memory_utilization=0.4")
    (warning,) = warnings
    assert warning.startswith("actor_rollout_ref.rollout.gpu_memory_utilization=0.4 has no effect: the embedded engine")


def test_a_value_that_asks_for_what_is_done_passes_in_silence(load_with_warnings: Loader) -> None:
    _, warnings = load_with_warnings(
        "actor_rollout_ref.model.lora_rank=0",
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "trainer.critic_warmup=0",
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size=1",
        "algorithm.use_pf_ppo=False",
    )
    assert warnings == []


def test_one_is_not_true() -> None:
    with pytest.raises(ConfigError, match="is refused"):
        load(["actor_rollout_ref.ref.ulysses_sequence_parallel_size=true"])


def test_warning_in_a_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("hydra:\n  run:\n    dir: x\n")
    warnings: list[str] = []
    load([], [tmp_path / "a.yaml"], on_warning=warnings.append)
    assert warnings[0].startswith(f"{tmp_path}/a.yaml: hydra.run.dir=x has no effect")


def test_a_typical_command_line_of_verl(base: list[str], load_with_warnings: Loader) -> None:
    """GRPO on gsm8k as verl's own example scripts type it, with what has to change: the engine and the GPU count."""
    config, warnings = load_with_warnings(
        *base,
        "data.max_prompt_length=512",
        "data.max_response_length=1024",
        "data.filter_overlong_prompts=True",
        "data.truncation='error'",
        "actor_rollout_ref.actor.optim.lr=1e-6",
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_coef=0.001",
        "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
        "actor_rollout_ref.actor.entropy_coeff=0",
        "actor_rollout_ref.model.enable_gradient_checkpointing=True",
        "actor_rollout_ref.actor.fsdp_config.param_offload=False",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=False",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
        "actor_rollout_ref.rollout.name=hf",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32",
        "actor_rollout_ref.ref.fsdp_config.param_offload=True",
        "algorithm.use_kl_in_reward=False",
        "trainer.critic_warmup=0",
        "trainer.logger=['console','wandb']",
        "trainer.project_name='verl_grpo_example_gsm8k'",
        "trainer.n_gpus_per_node=1",
        "trainer.nnodes=1",
        "trainer.save_freq=20",
        "trainer.test_freq=5",
        "trainer.total_epochs=15",
    )
    from argosy.config import find_problems

    assert find_problems(config) == []
    assert config.trainer.project_name == "verl_grpo_example_gsm8k"
    assert sorted(warning.partition("=")[0].rpartition(".")[2] for warning in warnings) == [
        "gpu_memory_utilization",
        "param_offload",
        "tensor_model_parallel_size",
    ]


def test_recipe_with_a_defaults_list(tmp_path: Path) -> None:
    (tmp_path / "shared.yaml").write_text("data:\n  seed: 1\n  max_prompt_length: 9\n")
    (tmp_path / "recipe.yaml").write_text("defaults:\n  - ppo_trainer\n  - shared\n  - _self_\ndata:\n  seed: 2\n")
    config = load(["data.shuffle=false"], [tmp_path / "recipe.yaml"])
    assert (config.data.seed, config.data.max_prompt_length, config.data.shuffle) == (2, 9, False)
    (tmp_path / "recipe.yaml").write_text("defaults:\n  - not_there\n")
    with pytest.raises(ConfigError, match="not_there"):
        load([], [tmp_path / "recipe.yaml"])


def test_saved_configuration_reads_back_equal(tmp_path: Path) -> None:
    config = load(
        [
            "actor_rollout_ref.actor.optim.lr=1e-6",
            "custom_reward_function.reward_kwargs={a: 1e-7, b: [x, null, true], c: '1e-6'}",
            "argosy.rollout.stop=['\\n', \"a#b: c\"]",
            "trainer.experiment_name='007'",
            'data.prompt_key="None"',
            "actor_rollout_ref.actor.optim.betas=[0.9,0.95]",
        ]
    )
    config.save(tmp_path / "deep" / "config.yaml")
    assert load_resolved(tmp_path / "deep" / "config.yaml") == config
    assert load([], [tmp_path / "deep" / "config.yaml"]) == config


def test_saved_configuration_is_a_config_file_too(tmp_path: Path, valid: Config) -> None:
    valid.save(tmp_path / "config.yaml")
    assert load([], [tmp_path / "config.yaml"]) == valid


def test_each_leaf_is_reachable_by_its_honoured_key() -> None:
    for path, _ in leaves():
        assert path.startswith("argosy.") or path in HONOURED, path


def test_with_values_is_typed() -> None:
    assert Config().with_values({"data.train_files": "a"}).data.train_files == ("a",)
    with pytest.raises(ConfigError, match=r"data\.sede: no such key"):
        Config().with_values({"data.sede": 1})
    with pytest.raises(ConfigError, match=r"data\.seed: wants a whole number"):
        Config().with_values({"data.seed": "x"})


def test_import_is_light() -> None:
    program = (
        "import sys, argosy.config, argosy.cli.config\n"
        "print([m for m in ('torch', 'hydra', 'omegaconf', 'yaml', 'numpy', 'grpc', 'rich') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == "[]"
    loads = "import sys; from argosy.config import load; load([]); print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == "False"


def test_an_attention_of_ones_own_is_warned_about(load_with_warnings: Loader) -> None:
    key = "actor_rollout_ref.model.override_config.attn_implementation"
    _, warnings = load_with_warnings(f"+{key}=flash_attention_2")
    assert [warning.partition(" has no effect")[0] for warning in warnings] == [key]
    assert load_with_warnings("+actor_rollout_ref.model.override_config.rope_theta=5.0")[1] == []
