"""Does the configuration make sense, before any process starts?"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from argosy.config.schema import Config
from argosy.config.validate.adapters import check_8bit, check_adapter_files, check_lora, check_target_modules
from argosy.config.validate.agents import check_agent_files, check_agents
from argosy.config.validate.algorithms import (
    check_estimator,
    check_filter_groups,
    check_overlong,
    check_rollout_correction,
)
from argosy.config.validate.asynchrony import check_asynchrony
from argosy.config.validate.critic import check_critic
from argosy.config.validate.engines import check_engine, check_sglang_filters
from argosy.config.validate.files import check_data_files, check_other_paths
from argosy.config.validate.losses import check_losses
from argosy.config.validate.openai import check_openai
from argosy.config.validate.parallel import (
    check_compilation,
    check_model_heads,
    check_parallel_sizes,
    check_ranks,
)
from argosy.config.validate.placement import (
    check_fleet,
    check_interpreters,
    check_pool_configs,
    check_pools,
    check_services,
)
from argosy.config.validate.recording import check_recording
from argosy.config.validate.relations import (
    check_argosy,
    check_batches,
    check_devices,
    check_lengths,
    check_optimizer,
    check_trainer,
)
from argosy.config.validate.restart import check_restart
from argosy.config.validate.reward_models import check_judge_files, check_own_weights, check_reward_models
from argosy.config.validate.rewards import check_reward_configs, check_rewards
from argosy.config.validate.rules import check_fields
from argosy.config.validate.sandbox import check_sandbox
from argosy.config.validate.weight_sync import check_weight_sync
from argosy.types.errors import ConfigError

__all__ = ["CHECKS", "FILE_CHECKS", "find_problems", "validate", "validate_row_count"]

CHECKS: tuple[Callable[[Config], Iterable[str]], ...] = (
    check_estimator,
    check_batches,
    check_critic,
    check_filter_groups,
    check_rollout_correction,
    check_losses,
    check_overlong,
    check_lengths,
    check_optimizer,
    check_trainer,
    check_parallel_sizes,
    check_ranks,
    check_restart,
    check_compilation,
    check_lora,
    check_8bit,
    check_argosy,
    check_asynchrony,
    check_engine,
    check_sglang_filters,
    check_weight_sync,
    check_openai,
    check_agents,
    check_recording,
    check_devices,
    check_services,
    check_fleet,
    check_pools,
    check_rewards,
    check_sandbox,
    check_reward_models,
)
FILE_CHECKS: tuple[Callable[[Config], Iterable[str]], ...] = (
    check_data_files,
    check_other_paths,
    check_agent_files,
    check_judge_files,
    check_interpreters,
    check_model_heads,
    check_adapter_files,
    check_target_modules,
)


def find_problems(config: Config, *, files: bool = True) -> list[str]:
    """Every problem, one line each, with the full path, what was given and what to do.

    `files=False` leaves the file system out. Where single fields are wrong, what depends on them isn't looked at.
    """
    checks = (*CHECKS, *FILE_CHECKS) if files else CHECKS
    problems = list(check_fields(config))
    out_of_range = {problem.partition(":")[0] for problem in problems if ": got " in problem}
    if out_of_range:
        checks = FILE_CHECKS if files else ()
    for check in checks:
        problems += check(config)
    problems += check_pool_configs(config, check_fields, CHECKS, problems)
    problems += check_reward_configs(config, check_fields, CHECKS, problems)
    return problems


def validate(config: Config) -> None:
    """What a training run can't do with. Raises ConfigError that lists every problem (exit code 2)."""
    problems = [*find_problems(config), *check_own_weights(config)]
    if problems:
        raise ConfigError("\n".join(problems))


def validate_row_count(config: Config, row_count: int, *, filtered_count: int = 0) -> None:
    """Refuse data of which not even one batch can be made (case C10), once the rows are known.

    `row_count` rows are left after `filtered_count` overlong ones were dropped. Raises ConfigError.
    """
    key = "data.train_batch_size" if config.data.gen_batch_size is None else "data.gen_batch_size"
    wanted = config.data.gen_batch_size or config.data.train_batch_size
    if row_count >= wanted:
        return
    dropped = f" ({filtered_count} more were dropped as longer than data.max_prompt_length=" if filtered_count else ""
    if dropped:
        dropped += f"{config.data.max_prompt_length})"
    raise ConfigError(
        f"data.train_files: {row_count} rows{dropped}, fewer than one batch of {key}={wanted}: "
        "the run would end after 0 steps. "
        + (f"Set {key} (and ppo_mini_batch_size) to at most {row_count}" if row_count else "Give rows")
    )
