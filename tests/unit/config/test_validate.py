"""What doesn't make sense is refused before any process starts, with the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config, find_problems, load, validate, validate_row_count
from argosy.config.convert import leaves
from argosy.config.validate.rules import CHOICES, RANGES
from argosy.types.errors import ConfigError

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def problem_of(config: Config, values: dict[str, Any]) -> str:
    problems = find_problems(config.with_values(values))
    assert len(problems) == 1, problems
    return problems[0]


def test_the_base_is_valid(valid: Config) -> None:
    validate(valid)


def test_b1_group_estimator_with_one_sample_is_refused_with_the_numbers(valid: Config) -> None:
    problem = problem_of(valid, {f"{ROLLOUT}.n": 1})
    assert problem.startswith(f"{ROLLOUT}.n: got 1 with algorithm.adv_estimator=grpo")
    assert "wants ≥ 2" in problem
    assert find_problems(valid.with_values({f"{ROLLOUT}.n": 2})) == []


def test_b1_verls_default_n_of_1_is_caught(base: list[str]) -> None:
    config = load([argument for argument in base if "rollout.n=" not in argument])
    with pytest.raises(ConfigError, match=r"rollout\.n: got 1 with algorithm\.adv_estimator=grpo"):
        validate(config)


def test_verls_default_estimator_runs_a_critic(base: list[str]) -> None:
    """gae, with verl's default of one response per prompt."""
    config = load([argument for argument in base[1:] if "rollout.n=" not in argument])
    assert (config.algorithm.adv_estimator, config.needs_critic) == ("gae", True)
    assert find_problems(config, files=False) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"critic.enable": False}, "critic.enable: got false with algorithm.adv_estimator=gae"),
        ({"critic.ppo_mini_batch_size": 16}, "got 16 for data.train_batch_size=8"),
        ({"critic.ppo_mini_batch_size": 3}, "(8 = 2 × 3 + 2); nearest that do: 2 and 4"),
        ({"critic.ppo_micro_batch_size_per_gpu": 17}, "mini-batches of 16 sequences"),
        ({"critic.ppo_max_token_len_per_gpu": 1023}, "wants ≥ 1024"),
        ({"critic.forward_max_token_len_per_gpu": 1023}, "wants ≥ 1024"),
        ({"critic.cliprange_value": 0.0}, "wants a value > 0"),
        ({"critic.loss_agg_mode": "mean"}, "wants token-mean"),
        ({"critic.optim.lr": -1.0}, "wants a value ≥ 0"),
        ({"critic.optim.betas": [0.9, 1.0]}, "wants both ≥ 0 and < 1"),
        ({"critic.optim.lr_warmup_steps": 9, "trainer.total_training_steps": 5}, "would never reach its peak"),
        ({"critic.fsdp_config.model_dtype": "bf16"}, "would lose small updates"),
        ({"critic.fsdp_config.dtype": "bfloat16", "argosy.deterministic": True}, "bit for bit in float32 only"),
        ({"critic.model.path": "/no/such/model"}, "critic.model.path: no such folder"),
        ({"trainer.critic_warmup": 5, "trainer.total_training_steps": 5}, "got 5 for trainer.total_training_steps=5"),
        ({"argosy.critic.host": "0.0.0.0"}, "only loopback is accepted"),
        ({"argosy.controller.host": "0.0.0.0"}, "argosy.controller.host: got '0.0.0.0'"),
        ({"argosy.critic.device": "gpu"}, "wants auto, cpu, cuda or cuda:N"),
    ],
)
def test_refused_with_a_critic(valid: Config, values: dict[str, Any], expected: str) -> None:
    problem = problem_of(valid, {"algorithm.adv_estimator": "gae", **values})
    assert expected in problem
    assert problem.startswith(next(iter(values)))


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("critic.enable", True, "which reads no values"),
        ("trainer.critic_warmup", 2, "has no critic"),
        ("algorithm.adv_estimator", "rloo_vectorized", "set rloo"),
    ],
)
def test_refused_without_a_critic(valid: Config, path: str, value: object, expected: str) -> None:
    assert expected in problem_of(valid, {path: value})


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("algorithm.adv_estimator", "grop", "wants gae, grpo,"),
        (f"{ROLLOUT}.name", "trtllm", "engine that is not there"),
        (f"{ROLLOUT}.name", "hff", "wants hf"),
        (f"{ACTOR}.ppo_mini_batch_size", 16, "got 16 for data.train_batch_size=8"),
        (f"{ACTOR}.ppo_mini_batch_size", 3, "(8 = 2 × 3 + 2); nearest that do: 2 and 4"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu", 17, "mini-batches of 16 sequences"),
        (f"{ACTOR}.ppo_max_token_len_per_gpu", 1023, "wants ≥ 1024"),
        (f"{ROLLOUT}.log_prob_max_token_len_per_gpu", 1023, "wants ≥ 1024"),
        (f"{ACTOR}.clip_ratio", 0.0, "wants a value > 0 and ≤ 1"),
        (f"{ACTOR}.clip_ratio_c", 1.0, "wants a value > 1"),
        (f"{ACTOR}.optim.lr", -1.0, "wants a value ≥ 0"),
        (f"{ACTOR}.optim.lr", float("nan"), "wants a value ≥ 0"),
        (f"{ACTOR}.optim.betas", [0.9, 1.0], "wants both ≥ 0 and < 1"),
        (f"{ACTOR}.optim.lr_warmup_steps", -2, "wants a value ≥ 0 or -1"),
        (f"{ROLLOUT}.temperature", 0.0, "wants a value > 0"),
        (f"{ROLLOUT}.top_p", 0.0, "wants a value > 0 and ≤ 1"),
        (f"{ROLLOUT}.top_k", -2, "wants a value ≥ 1 or -1 or 0"),
        (f"{ROLLOUT}.max_model_len", 512, "no room for a response"),
        (f"{ROLLOUT}.do_sample", False, "greedy responses"),
        (f"{ROLLOUT}.val_kwargs.n", 4, "greedy validation"),
        ("argosy.rollout.min_response_length", 513, "more than data.max_response_length=512"),
        ("data.truncation", "middel", "wants error, left, right or middle"),
        ("trainer.nnodes", 2, "got 2; the trainer's ranks are processes on one machine"),
        ("trainer.n_gpus_per_node", 0, "got 0, wants a value ≥ 1"),
        ("trainer.logger", ["wandbb"], "wants a list of console, file, tensorboard or wandb"),
        ("trainer.save_freq", 0, "wants a value ≥ 1 or -1"),
        ("trainer.total_training_steps", 0, "wants a value ≥ 1"),
        ("trainer.resume_mode", "resume_path", "trainer.resume_from_path: must name"),
        ("trainer.resume_mode", "never", "wants auto, disable or resume_path"),
        ("trainer.resume_from_path", ".", "set trainer.resume_mode=resume_path"),
        ("argosy.placement", "kubernetes", "wants local, fleet or inprocess"),
        ("argosy.max_staleness", 65, "wants a value ≥ 0 and ≤ 64"),
        ("argosy.rollout.host", "0.0.0.0", "only loopback is accepted"),
        ("argosy.reward.host", "example.org", "only loopback is accepted"),
        ("argosy.rollout.port", 65536, "wants a value ≥ 0 and ≤ 65535"),
        ("argosy.trainer.device", "gpu", "wants auto, cpu, cuda or cuda:N"),
        ("argosy.rpc.retry_max_backoff_s", 0.01, "less than retry_initial_backoff_s=0.1"),
        ("data.train_files", ["/no/such/*.parquet"], "no file matches"),
        ("custom_reward_function.path", "/no/such.py", "no such file: /no/such.py"),
        ("data.train_files", [], "must name at least one"),
        ("data.train_files", ["/no/such.parquet"], "no such file: /no/such.parquet"),
        ("data.train_files", ["no.parquet"], "seen from"),
        ("data.val_files", [], "set trainer.val_before_train=false trainer.test_freq=-1"),
        ("actor_rollout_ref.model.path", "", "must name a model"),
        ("actor_rollout_ref.model.path", "/no/such/model", "no such folder"),
    ],
)
def test_refused(valid: Config, path: str, value: object, expected: str) -> None:
    problem = problem_of(valid, {path: value})
    assert expected in problem
    assert "." in problem.partition(":")[0]


@pytest.mark.parametrize(
    "values",
    [
        {"argosy.rollout.host": "0.0.0.0", "argosy.allow_remote_hosts": True},
        {"argosy.rollout.host": "::1"},
        {"argosy.placement": "inprocess"},
        {"data.val_files": [], "trainer.val_before_train": False},
        {
            f"{ROLLOUT}.val_kwargs.n": 4,
            f"{ROLLOUT}.val_kwargs.do_sample": True,
            f"{ROLLOUT}.val_kwargs.temperature": 0.7,
        },
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 16, f"{ACTOR}.ppo_max_token_len_per_gpu": 8},
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 999, f"{ACTOR}.use_dynamic_bsz": True},
        {f"{ACTOR}.use_kl_loss": True, "algorithm.use_kl_in_reward": True},
        {"actor_rollout_ref.model.path": "owner/model"},
        {"argosy.trainer.device": "cuda:1"},
    ],
)
def test_accepted(valid: Config, values: dict[str, Any]) -> None:
    assert find_problems(valid.with_values(values)) == []


def test_every_problem_at_once(valid: Config) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(valid.with_values({"trainer.nnodes": 2, f"{ROLLOUT}.n": 1, "data.train_files": ["/no"]}))
    assert len(caught.value.message.splitlines()) == 3


def test_deterministic_holds_in_float32_on_cpu_only(valid: Config) -> None:
    exact = valid.with_values({"argosy.deterministic": True})
    assert find_problems(exact) == []
    assert "float32 only" in problem_of(exact, {"argosy.rollout.dtype": "bfloat16"})
    assert "float32 only" in problem_of(exact, {f"{ACTOR}.fsdp_config.dtype": "bfloat16"})
    assert "cpu only" in problem_of(exact, {"argosy.trainer.device": "cuda"})


def test_files_that_are_folders_or_empty(valid: Config, tmp_path: Path) -> None:
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "no_model").mkdir()
    assert "the file is empty" in problem_of(valid, {"data.train_files": [f"{tmp_path}/empty.parquet"]})
    assert "is a folder" in problem_of(valid, {"data.train_files": [str(tmp_path)]})
    assert "more than once" in problem_of(valid, {"data.train_files": [*valid.data.train_files] * 2})
    assert "has no config.json" in problem_of(valid, {"actor_rollout_ref.model.path": f"{tmp_path}/no_model"})
    assert "argosy model import" in problem_of(valid, {"actor_rollout_ref.model.path": valid.data.train_files[0]})
    assert "is a file" in problem_of(valid, {"trainer.default_local_dir": f"{valid.data.train_files[0]}/run"})


def test_globs(valid: Config, tmp_path: Path) -> None:
    (tmp_path / "a[1]*.jsonl").write_text("{}")
    for pattern in ("*.jsonl", "**/*.jsonl", "a[1]*.jsonl"):
        assert find_problems(valid.with_values({"data.train_files": [f"{tmp_path}/{pattern}"]})) == []


def test_resume_path_must_be_a_folder(valid: Config, tmp_path: Path) -> None:
    wanted = {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": f"{tmp_path}/no"}
    assert "no such folder" in problem_of(valid, wanted)
    assert find_problems(valid.with_values({**wanted, "trainer.resume_from_path": str(tmp_path)})) == []


def test_every_ranged_or_chosen_path_is_a_field() -> None:
    paths = {path for path, _ in leaves()}
    assert set(RANGES) <= paths
    assert set(CHOICES) <= paths


def test_every_number_has_a_range() -> None:
    """A new numeric field without bounds is a hole in the validation."""
    numeric = {path for path, kind in leaves() if kind in (int, float, int | None, float | None)}
    checked_elsewhere = {"trainer.nnodes"}
    assert numeric - set(RANGES) == checked_elsewhere


@pytest.mark.parametrize(("rows", "filtered"), [(5, 0), (4, 4), (0, 0)])
def test_c10_fewer_rows_than_a_batch_is_refused(valid: Config, rows: int, filtered: int) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_row_count(valid, rows, filtered_count=filtered)
    message = caught.value.message
    assert f"data.train_files: {rows} rows" in message
    assert "data.train_batch_size=8" in message
    assert ("4 more were dropped" in message) == (filtered == 4)


def test_c10_exactly_one_batch_is_enough(valid: Config) -> None:
    validate_row_count(valid, 8)


def test_gdpo_with_kl_in_the_reward_is_refused(valid: Config) -> None:
    gdpo = {"algorithm.adv_estimator": "gdpo", "algorithm.gdpo_reward_keys": ["acc"]}
    assert find_problems(valid.with_values(gdpo)) == []
    problem = problem_of(valid, {**gdpo, "algorithm.use_kl_in_reward": True})
    assert problem.startswith("algorithm.use_kl_in_reward: got true with algorithm.adv_estimator=gdpo")


MODEL = "actor_rollout_ref.model"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({f"{MODEL}.lora_rank": -1}, "got -1"),
        ({f"{MODEL}.lora_rank": 4, f"{MODEL}.lora_alpha": 0}, "lora_alpha"),
        ({f"{MODEL}.target_modules": ["q_proj"]}, "lora_rank=0, which trains all weights"),
        ({f"{MODEL}.lora_rank": 4, f"{MODEL}.target_modules": []}, "target_modules: got []"),
        ({f"{MODEL}.lora_adapter_path": "/nowhere"}, "lacks adapter_config.json, adapter_model.safetensors"),
        ({f"{ACTOR}.optim.optimizer": "Muon"}, "got Muon with optimizer_impl=torch.optim, wants AdamW with"),
        (
            {f"{ACTOR}.optim.optimizer": "AdamW8bit", f"{ACTOR}.optim.optimizer_impl": "torchao.optim"}
            | {"trainer.n_gpus_per_node": 2},
            "AdamW8bit with trainer.n_gpus_per_node=2",
        ),
        (
            {f"{MODEL}.lora_rank": 4, "trainer.n_gpus_per_node": 2, "argosy.trainer.tensor_parallel_size": 2},
            "got 4 with argosy.trainer.tensor_parallel_size=2",
        ),
    ],
)
def test_adapters_and_optimizers_fit_the_backend(valid: Config, values: dict[str, Any], words: str) -> None:
    assert words in "\n".join(find_problems(valid.with_values(values)))


def test_an_adapter_needs_no_reference(valid: Config) -> None:
    lora = valid.with_values({f"{MODEL}.lora_rank": 4, f"{ACTOR}.use_kl_loss": True})
    assert find_problems(lora) == []
    assert (lora.needs_ref_log_probs, lora.needs_reference) == (True, False)


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (["q_proj"], ""),
        (["no_proj", "v_proj"], ""),
        (["all-linear"], ""),
        ([r".*self_attn\.[kv]_proj"], ""),
        (["proj"], "['proj'], which names no layer of"),
        ([".*_porj"], "it has k_proj, q_proj, v_proj (or say all-linear)"),
        (["*_proj"], "which is no regular expression"),
    ],
)
def test_target_modules_name_layers_of_the_model(valid: Config, tmp_path: Path, targets: list[str], words: str) -> None:
    names: dict[str, Any] = {f"model.layers.0.self_attn.{name}_proj.weight": {} for name in "qkv"}
    header = json.dumps(names).encode()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    values = {f"{MODEL}.path": str(tmp_path), f"{MODEL}.lora_rank": 4, f"{MODEL}.target_modules": targets}
    if words:
        assert words in problem_of(valid, values)
    else:
        assert find_problems(valid.with_values(values)) == []
    (tmp_path / "model.safetensors").write_bytes(b"broken")  # not for this check to say
    assert "no layer" not in "".join(find_problems(valid.with_values(values)))
