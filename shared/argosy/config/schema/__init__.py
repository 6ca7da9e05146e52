"""The configuration's classes, one file per section."""

from argosy.config.schema.actor import ActorConfig, PolicyLossConfig, RefConfig
from argosy.config.schema.algorithm import AlgorithmConfig, KlCtrlConfig
from argosy.config.schema.argosy import (
    ArgosyConfig,
    ControllerConfig,
    CriticServiceConfig,
    MembershipConfig,
    ParityConfig,
    ReferenceServiceConfig,
    RolloutServiceConfig,
    RpcConfig,
    TelemetryConfig,
    TrainerServiceConfig,
)
from argosy.config.schema.critic import CriticConfig, CriticModelConfig, CriticOptimConfig
from argosy.config.schema.data import DataConfig
from argosy.config.schema.engines import SglangConfig, SimulatedConfig
from argosy.config.schema.model import ModelConfig
from argosy.config.schema.optim import EngineConfig, OptimConfig
from argosy.config.schema.reward import CustomRewardConfig
from argosy.config.schema.rewards import REWARD_KINDS, NamedRewardConfig, RewardServiceConfig
from argosy.config.schema.rollout import RolloutConfig, ValKwargs
from argosy.config.schema.root import ActorRolloutRefConfig, Config
from argosy.config.schema.services import DEFAULT_POOL, PoolConfig, ServiceProcessConfig, ServicesConfig
from argosy.config.schema.trainer import TrainerConfig
from argosy.config.schema.weight_sync import WeightSyncConfig

__all__ = [
    "DEFAULT_POOL",
    "REWARD_KINDS",
    "ActorConfig",
    "ActorRolloutRefConfig",
    "AlgorithmConfig",
    "ArgosyConfig",
    "Config",
    "ControllerConfig",
    "CriticConfig",
    "CriticModelConfig",
    "CriticOptimConfig",
    "CriticServiceConfig",
    "CustomRewardConfig",
    "DataConfig",
    "EngineConfig",
    "KlCtrlConfig",
    "MembershipConfig",
    "ModelConfig",
    "NamedRewardConfig",
    "OptimConfig",
    "ParityConfig",
    "PolicyLossConfig",
    "PoolConfig",
    "RefConfig",
    "ReferenceServiceConfig",
    "RewardServiceConfig",
    "RolloutConfig",
    "RolloutServiceConfig",
    "RpcConfig",
    "ServiceProcessConfig",
    "ServicesConfig",
    "SglangConfig",
    "SimulatedConfig",
    "TelemetryConfig",
    "TrainerConfig",
    "TrainerServiceConfig",
    "ValKwargs",
    "WeightSyncConfig",
]
