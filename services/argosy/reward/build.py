"""From the configuration to what scores; used by the service's process and by the in-process placement."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Protocol

from argosy.config import Config
from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.custom import CustomFunction
from argosy.reward.pool import PoolOptions
from argosy.roles.reward import Reward
from argosy.sandbox.options import SandboxOptions
from argosy.types.errors import ConfigError

BUILDERS: dict[str, str] = {
    "rules": "argosy.reward.build:build_rules",
    "model": "argosy.reward.models.discriminative:build",
    "judge": "argosy.reward.models.generative:build",
    "http": "argosy.reward.adapters.http:build",
    "verifiers": "argosy.reward.adapters.verifiers:build",
    "nemo_gym": "argosy.reward.adapters.nemo_gym:build",
}
"""`argosy.reward.kind` → "module:function" that makes a core of it from a Config; imported only where it is wanted."""


class RewardCore(Reward, Protocol):
    """What a builder returns: the role, and a way to end it."""

    async def close(self) -> None:
        """Let go of processes, connections and memory. May be called again."""
        ...


def build_core(cfg: Config) -> RewardCore:
    """Make what `argosy.reward.kind` says. Raises ConfigError if it can't be made."""
    module, _, name = BUILDERS[cfg.reward_kind].partition(":")
    try:
        builder = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(
            f"argosy.reward.kind={cfg.reward_kind} can't be loaded here ({error}); install what it needs, such "
            "as argosy[reward]"
        ) from error
    core: RewardCore = builder(cfg)
    return core


def build_rules(cfg: Config) -> RewardScorers:
    """Start the verifiers' workers. Raises ConfigError if the custom reward function can't be loaded."""
    return RewardScorers(reward_options(cfg))


def reward_options(cfg: Config) -> RewardOptions:
    """What of the configuration concerns the scorers."""
    reward, custom = cfg.argosy.reward, cfg.custom_reward_function
    function = None
    if custom.path is not None:
        path = str(Path(custom.path).expanduser().absolute())
        batch = cfg.reward_model.reward_manager == "batch"
        function = CustomFunction(path, custom.name, dict(custom.reward_kwargs), batch)
    pool = PoolOptions(worker_count=reward.worker_count, timeout_s=reward.timeout_s)
    return RewardOptions(pool, function, sandbox=_sandbox_options(cfg), scorer_kwargs=dict(reward.scorer_kwargs))


def _sandbox_options(cfg: Config) -> SandboxOptions:
    sandbox, mib = cfg.argosy.reward.sandbox, 1024**2
    return SandboxOptions(
        isolation=sandbox.isolation,
        control_groups=sandbox.control_groups,
        test_timeout_s=sandbox.test_timeout_s,
        sample_timeout_s=sandbox.sample_timeout_s or 0.8 * cfg.argosy.reward.timeout_s,
        memory_bytes=sandbox.memory_mb * mib,
        tmp_bytes=sandbox.tmp_mb * mib,
        output_bytes=sandbox.output_mb * mib,
        process_count=sandbox.process_count,
        languages=tuple(sandbox.languages),
        credit=sandbox.credit,
        site_packages=sandbox.site_packages,
    )
