"""The key table: each key of verl has exactly one fate, and the table says it truly."""

from __future__ import annotations

import itertools

import pytest

from argosy.config import load
from argosy.config.convert import leaves
from argosy.config.keys import HONOURED, REFUSED, TABLE, WARNED, Honoured, find
from argosy.config.lookup import Verdict, find_leaf, judge
from argosy.types.errors import ConfigError

M, A, R, F = "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"

REFERENCE_KEYS = [
    # Transcribed line by line from the reference's section 1.
    *("data.train_files", "data.val_files", "data.train_batch_size", "data.max_prompt_length"),
    *("data.max_response_length", "data.truncation", "data.filter_overlong_prompts", "data.return_raw_chat"),
    *("data.prompt_key", "data.shuffle", "data.image_key"),
    *(f"{M}.path", f"{M}.enable_gradient_checkpointing", f"{M}.use_remove_padding", f"{M}.use_fused_kernels"),
    *(f"{M}.lora_rank", f"{M}.lora_alpha", f"{M}.target_modules", f"{M}.use_shm"),
    *(f"{A}.optim.lr", f"{A}.ppo_mini_batch_size", f"{A}.ppo_micro_batch_size_per_gpu", f"{A}.use_kl_loss"),
    *(f"{A}.kl_loss_coef", f"{A}.kl_loss_type", f"{A}.entropy_coeff", f"{A}.fsdp_config.param_offload"),
    *(f"{A}.fsdp_config.optimizer_offload", f"{A}.fsdp_config.fsdp_size", f"{A}.use_dynamic_bsz"),
    *(f"{A}.ppo_max_token_len_per_gpu", f"{A}.ulysses_sequence_parallel_size", f"{A}.use_torch_compile"),
    *(f"{A}.clip_ratio", f"{A}.clip_ratio_low", f"{A}.clip_ratio_high", f"{A}.clip_ratio_c"),
    *(f"{A}.policy_loss.loss_mode", f"{A}.loss_agg_mode", f"{A}.optim.weight_decay", f"{A}.optim.betas"),
    *(f"{A}.optim.lr_warmup_steps", f"{A}.optim.lr_warmup_steps_ratio", f"{A}.grad_clip", f"{A}.ppo_epochs"),
    *(f"{A}.megatron.{size}_model_parallel_size" for size in ("tensor", "pipeline", "expert")),
    *(f"{A}.megatron.context_parallel_size", f"{A}.megatron.virtual_pipeline_model_parallel_size"),
    *(f"{A}.megatron.{kind}_offload" for kind in ("param", "grad", "optimizer")),
    f"{A}.megatron.use_mbridge",
    *(f"{R}.name", f"{R}.tensor_model_parallel_size", f"{R}.gpu_memory_utilization", f"{R}.n"),
    *(f"{R}.log_prob_micro_batch_size_per_gpu", f"{R}.enable_chunked_prefill", f"{R}.max_num_batched_tokens"),
    *(f"{R}.log_prob_use_dynamic_bsz", f"{R}.mode", f"{R}.enforce_eager", f"{R}.free_cache_engine"),
    *(f"{R}.multi_turn.tool_config_path", f"{R}.val_kwargs.temperature", f"{R}.val_kwargs.top_p"),
    *(f"{R}.val_kwargs.n", f"{R}.val_kwargs.top_k", f"{R}.val_kwargs.do_sample"),
    *(f"{R}.temperature", f"{R}.top_p", f"{R}.top_k", f"{R}.load_format", f"{R}.max_num_seqs"),
    *(f"{R}.max_model_len", f"{R}.calculate_log_probs", f"{R}.layered_summon"),
    *(f"{F}.log_prob_micro_batch_size_per_gpu", f"{F}.fsdp_config.param_offload"),
    *("critic.optim.lr", "critic.model.path", "critic.ppo_micro_batch_size_per_gpu"),
    *("critic.ppo_max_token_len_per_gpu", "critic.cliprange_value", "critic.enable"),
    *("algorithm.adv_estimator", "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef", "algorithm.gamma"),
    *("algorithm.lam", "algorithm.norm_adv_by_std_in_grpo", "algorithm.filter_groups.enable"),
    *("algorithm.filter_groups.metric", "algorithm.filter_groups.max_num_gen_batches"),
    *("algorithm.rollout_correction.rollout_is", "algorithm.rollout_correction.bypass_mode"),
    *("algorithm.kl_ctrl.type", "algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl"),
    *("custom_reward_function.path", "custom_reward_function.name", "custom_reward_function.reward_kwargs"),
    *("reward_model.reward_manager", "reward_model.reward_kwargs.overlong_buffer_cfg.enable"),
    *("reward_model.reward_kwargs.overlong_buffer_cfg.len", "reward_model.reward_kwargs.max_resp_len"),
    *("reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor", "reward_model.enable"),
    *("reward_model.model.path", "reward.reward_manager.name", "reward.reward_model.enable"),
    "reward.reward_kwargs.overlong_buffer_cfg.enable",
    *("trainer.logger", "trainer.project_name", "trainer.experiment_name", "trainer.total_epochs"),
    *("trainer.n_gpus_per_node", "trainer.nnodes", "trainer.save_freq", "trainer.test_freq"),
    *("trainer.critic_warmup", "trainer.val_before_train", "trainer.default_local_dir"),
    *("trainer.total_training_steps", "trainer.resume_mode", "trainer.log_val_generations"),
    "trainer.balance_batch",
]


@pytest.mark.parametrize("key", REFERENCE_KEYS)
def test_each_key_of_the_reference_is_in_the_table(key: str) -> None:
    assert find(key) is not None


def test_exactly_one_fate() -> None:
    for one, other in itertools.combinations([HONOURED.keys(), REFUSED.keys(), WARNED.keys()], 2):
        assert not one & other
    assert len(TABLE) == len(HONOURED) + len(REFUSED) + len(WARNED)


def test_each_honoured_key_is_a_field_or_acts_through_fields() -> None:
    paths = {path for path, _ in leaves()}
    for key, row in HONOURED.items():
        assert row.effect.endswith("."), key
        assert set(row.targets or (key,)) <= paths, key
        assert bool(row.targets) == (key not in paths), f"{key}: targets are for other spellings only"


def test_no_field_is_refused_or_warned_about() -> None:
    for key in (*REFUSED, *WARNED):
        assert find_leaf(key.removesuffix(".*")) is None, key


@pytest.mark.parametrize("key", [key for key in REFUSED if not key.endswith(".*")])
def test_each_refused_key_is_refused_with_its_reason_and_passes_when_neutral(key: str) -> None:
    row = REFUSED[key]
    with pytest.raises(ConfigError) as caught:
        load([f"{key}=123456"])
    assert f"{key}=123456 is refused: {row.reason}" in caught.value.message
    assert all(judge(key, value) == Verdict() for value in row.neutral)


@pytest.mark.parametrize("key", [key for key in WARNED if not key.endswith(".*")])
def test_each_warned_key_is_warned_about_with_its_reason_and_silent_when_neutral(key: str) -> None:
    row = WARNED[key]
    assert judge(key, 123456) == Verdict(warning=f"{key}=123456 has no effect: {row.reason}.")
    assert all(judge(key, value) == Verdict() for value in row.neutral)
    for value, reason in row.refused_values.items():
        assert judge(key, value) == Verdict(problem=f"{key}={value} is refused: {reason}.")


@pytest.mark.parametrize(
    ("key", "row"),
    [
        (f"{A}.megatron.some.deep.key", f"{A}.megatron.*"),
        ("critic.enable", "critic.enable"),
        ("critic.megatron.param_offload", "critic.megatron.*"),
        ("hydra.run.dir", "hydra.*"),
        ("custom_reward_function.reward_kwargs.a.b", "custom_reward_function.reward_kwargs"),
    ],
)
def test_the_longest_path_that_fits_decides(key: str, row: str) -> None:
    found = find(key)
    assert found is not None
    assert found[0] == row


def test_unknown_keys_are_in_no_row() -> None:
    assert find("data.sede") is None
    assert find("nonsense") is None


def test_reasons_are_sentences_without_a_full_stop() -> None:
    for key, row in TABLE.items():
        reason = row.effect.removesuffix(".") if isinstance(row, Honoured) else row.reason
        assert reason, key
        assert not reason.endswith("."), key
