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
from argosy.config.schema.data import DataConfig
from argosy.config.schema.model import ModelConfig
from argosy.config.schema.reward import CustomRewardConfig, RewardModelConfig
from argosy.config.schema.rollout import RolloutConfig
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
        """The folder that everything of this run is written to."""
        named = self.trainer.default_local_dir
        return Path(named or f"checkpoints/{self.trainer.project_name}/{self.trainer.experiment_name}").expanduser()

    @property
    def needs_reference(self) -> bool:
        """Whether the reference service runs at all."""
        return self.actor_rollout_ref.actor.use_kl_loss or self.algorithm.use_kl_in_reward

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars, as YAML and JSON want them."""
        return {key: _plain(value) for key, value in dataclasses.asdict(self).items()}

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
