"""hydra-core's composition, with its errors turned into ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from argosy.types.errors import ConfigError

_BASE = "argosy_defaults_and_files"


def compose_file(path: Path) -> dict[str, Any]:
    """A configuration file that has a `defaults` list, composed from its folder and its searchpath.

    `ppo_trainer` and `ppo_megatron_trainer` in that list stand for the defaults, so that verl's recipes compose.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for name in ("ppo_trainer", "ppo_megatron_trainer"):
        ConfigStore.instance().store(name=name, node={})
    try:
        with initialize_config_dir(str(path.expanduser().resolve().parent), version_base="1.3"):
            composed = compose(config_name=path.name)
        plain = OmegaConf.to_container(composed, resolve=False)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: {_one_line(error)}") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"{path}: wants `key: value` lines at the top")
    return {str(key): value for key, value in plain.items()}


def compose_values(base: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Hydra's composition of `base` and overrides, with `${…}` resolved."""
    from hydra import compose, initialize
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    ConfigStore.instance().store(name=_BASE, node=dict(base))
    try:
        with initialize(config_path=None, version_base="1.3"):
            composed = compose(config_name=_BASE, overrides=list(overrides))
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_one_line(error)) from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _one_line(error: Exception) -> str:
    """The part of Hydra's or OmegaConf's message that says what, with the full path."""
    cause = error.__cause__ if error.__cause__ is not None else error
    message = str(cause).strip().splitlines()[0]
    path = getattr(cause, "full_key", None)
    return f"{path}: {message}" if path else message
