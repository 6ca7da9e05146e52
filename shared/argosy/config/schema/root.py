"""The whole configuration: an attribute path is the key that is typed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from argosy.config.schema.actor import ActorConfig, RefConfig
from argosy.config.schema.algorithm import AlgorithmConfig
from argosy.config.schema.argosy import ArgosyConfig
from argosy.config.schema.critic import CriticConfig
from argosy.config.schema.data import DataConfig
from argosy.config.schema.model import ModelConfig
from argosy.config.schema.reward import CustomRewardConfig, RewardModelConfig
from argosy.config.schema.rewards import NamedRewardConfig
from argosy.config.schema.rollout import RolloutConfig
from argosy.config.schema.services import PoolConfig, without_secrets
from argosy.config.schema.trainer import TrainerConfig


@dataclass(frozen=True)
class ActorRolloutRefConfig:
    """The policy: its model, its update, its sampling and its reference."""

    model: ModelConfig = field(default_factory=ModelConfig)
    """The model."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    """Its update."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """Its sampling."""
    ref: RefConfig = field(default_factory=RefConfig)
    """Its frozen reference."""


@dataclass(frozen=True)
class Config:
    """Everything that one run needs to know, typed. `argosy.config.load` makes it from a command line.

    >>> Config().with_values({"actor_rollout_ref.rollout.n": 8}).actor_rollout_ref.rollout.n
    8
    """

    data: DataConfig = field(default_factory=DataConfig)
    """Which rows are read."""
    actor_rollout_ref: ActorRolloutRefConfig = field(default_factory=ActorRolloutRefConfig)
    """The policy."""
    critic: CriticConfig = field(default_factory=CriticConfig)
    """The value model."""
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """From rewards to advantages."""
    custom_reward_function: CustomRewardConfig = field(default_factory=CustomRewardConfig)
    """The user's own scorer."""
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)
    """From scores to rewards."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """The run as a whole."""
    argosy: ArgosyConfig = field(default_factory=ArgosyConfig)
    """What verl has no key for."""

    @property
    def run_folder(self) -> Path:
        """The folder that everything of this run is written to. Of a run whose folder is given as a URL, the working
        folder on this machine."""
        named = "" if "://" in self.trainer.default_local_dir else self.trainer.default_local_dir
        return Path(named or f"checkpoints/{self.trainer.project_name}/{self.trainer.experiment_name}").expanduser()

    @property
    def copy_url(self) -> str:
        """Where checkpoints and books are copied to; empty: nowhere."""
        trainer = self.trainer
        return trainer.default_local_dir if "://" in trainer.default_local_dir else trainer.default_hdfs_dir or ""

    @property
    def pools(self) -> dict[str, PoolConfig]:
        """Rollout pools by name: `argosy.pools`, or one of one server named "default". Raises ConfigError."""
        from argosy.config.pools import pools_of

        return pools_of(self)

    def for_pool(self, name: str | None) -> Config:
        """What the rollout servers of a pool see (null: of the only one). Raises ConfigError on an unknown pool."""
        from argosy.config.pools import choose_pool, config_of_pool

        return config_of_pool(self, choose_pool(self, name))

    @property
    def rewards(self) -> dict[str, NamedRewardConfig]:
        """Reward services by name: `argosy.reward.services`, or one named "default". Raises ConfigError."""
        from argosy.config.rewards import rewards_of

        return rewards_of(self)

    def for_reward(self, name: str | None) -> Config:
        """What the servers of a reward service see (null: of the only one). Raises ConfigError on an unknown one."""
        from argosy.config.rewards import choose_reward, config_of_reward

        return config_of_reward(self, choose_reward(self, name))

    @property
    def published_dtype(self) -> str:
        """Type in which weights go to the rollout servers: theirs, or float32 where some want more than others."""
        dtypes = {self.for_pool(name).argosy.rollout.dtype for name in self.pools}
        return dtypes.pop() if len(dtypes) == 1 else "float32"

    @property
    def needs_ref_log_probs(self) -> bool:
        """Whether a KL term compares with the start model."""
        return self.actor_rollout_ref.actor.use_kl_loss or self.algorithm.use_kl_in_reward

    @property
    def needs_reference(self) -> bool:
        """Whether the reference service runs at all: with LoRA the trainer itself still has the start model."""
        return self.needs_ref_log_probs and not self.actor_rollout_ref.model.uses_lora

    @property
    def reward_kind(self) -> str:
        """`argosy.reward.kind`, or "model" where reward_model.enable says so."""
        kind = self.argosy.reward.kind
        return "model" if self.reward_model.enable and kind == "rules" else kind

    @property
    def needs_critic(self) -> bool:
        """Whether the critic service runs: where the advantage estimator reads values, unless critic.enable says."""
        from argosy.algorithms.catalog import ADVANTAGES

        if self.critic.enable is not None:
            return self.critic.enable
        estimator = ADVANTAGES.get(self.algorithm.adv_estimator)
        return estimator is not None and "values" in estimator.needs

    @property
    def full_critic(self) -> CriticConfig:
        """`critic` with everything that is null taken from where its documentation says."""
        critic, policy = self.critic, self.actor_rollout_ref
        actor = policy.actor

        def given(value: Any, otherwise: Any) -> Any:
            return otherwise if value is None else value

        return dataclasses.replace(
            critic,
            model=dataclasses.replace(
                critic.model,
                path=given(critic.model.path, policy.model.path),
                tokenizer_path=given(critic.model.tokenizer_path, policy.model.tokenizer_path or policy.model.path),
                trust_remote_code=given(critic.model.trust_remote_code, policy.model.trust_remote_code),
            ),
            ppo_mini_batch_size=given(critic.ppo_mini_batch_size, actor.ppo_mini_batch_size),
            forward_micro_batch_size_per_gpu=given(
                critic.forward_micro_batch_size_per_gpu, critic.ppo_micro_batch_size_per_gpu
            ),
            use_dynamic_bsz=given(critic.use_dynamic_bsz, actor.use_dynamic_bsz),
            forward_max_token_len_per_gpu=given(critic.forward_max_token_len_per_gpu, critic.ppo_max_token_len_per_gpu),
            ppo_epochs=given(critic.ppo_epochs, actor.ppo_epochs),
            ulysses_sequence_parallel_size=given(
                critic.ulysses_sequence_parallel_size, actor.ulysses_sequence_parallel_size
            ),
            shuffle=given(critic.shuffle, actor.shuffle),
            data_loader_seed=given(critic.data_loader_seed, self.argosy.seed),
            loss_agg_mode=given(critic.loss_agg_mode, given(actor.loss_agg_mode, "token-mean")),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars, as YAML and JSON want them; secrets of `env` are hidden."""
        plain = {key: _plain(value) for key, value in dataclasses.asdict(self).items()}
        ours = plain["argosy"]
        for process in (*ours["services"].values(), *ours["pools"].values(), *ours["reward"]["services"].values()):
            if isinstance(process, dict) and isinstance(process.get("env"), dict):
                process["env"] = without_secrets(process["env"])
        return plain

    def with_values(self, values: Mapping[str, Any]) -> Config:
        """A copy with the named keys (full paths) replaced. Raises ConfigError on an unknown key or a wrong type."""
        from argosy.config.convert import replace_values

        return replace_values(self, values)

    def save(self, path: str | Path) -> None:
        """Write the resolved configuration as YAML; `load_resolved` reads it back to an equal Config."""
        from argosy.config.resolved import save_resolved

        save_resolved(self, Path(path))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
