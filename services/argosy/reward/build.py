"""From the configuration to the scorers; used by the service's process and by the in-process placement."""

from __future__ import annotations

from pathlib import Path

from argosy.config import Config
from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.custom import CustomFunction
from argosy.reward.pool import PoolOptions


def build_core(cfg: Config) -> RewardScorers:
    """Start the scorers. Raises ConfigError if the custom reward function can't be loaded."""
    return RewardScorers(reward_options(cfg))


def reward_options(cfg: Config) -> RewardOptions:
    """What of the configuration concerns the scorers."""
    reward, custom = cfg.argosy.reward, cfg.custom_reward_function
    function = None
    if custom.path is not None:
        path = str(Path(custom.path).expanduser().absolute())
        function = CustomFunction(path, custom.name, dict(custom.reward_kwargs))
    return RewardOptions(PoolOptions(worker_count=reward.worker_count, timeout_s=reward.timeout_s), function)
