"""`argosy.services.*` and `argosy.pools`: which interpreter a service runs in, which rollout servers there are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HIDDEN = "(hidden)"
"""Stands for a secret wherever a configuration is shown or written."""

DEFAULT_POOL = "default"
"""The one pool of a run whose configuration names none."""

_SECRET_WORDS = frozenset(
    ("key", "token", "secret", "password", "passwd", "pass", "pwd", "credential", "credentials", "auth", "cookie")
)
_SECRET_ENDINGS = ("apikey", "token", "secret", "password")
_SECRET_VALUE = re.compile(r"^(hf_|sk-|gh[pousr]_|github_pat_|xox[abp]-|AKIA)\w|://[^/\s:@]+:[^/\s@]+@|-----BEGIN ")


@dataclass(frozen=True)
class ServiceProcessConfig:
    """How the launcher starts one kind of service."""

    python: str | None = None
    """Interpreter of the environment that it runs in, such as .venvs/engines/bin/python; null: the launcher's own. It
    must have argosy and the service's packages; that is checked before any process starts."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the process, beside those that the launcher itself has. Secrets are better exported
    before the launcher starts; what looks like one here is hidden wherever the configuration is shown or written."""


@dataclass(frozen=True)
class ServicesConfig:
    """Interpreters and environment variables, by role."""

    rollout: ServiceProcessConfig = field(default_factory=ServiceProcessConfig)
    """Rollout servers; a pool may have its own."""
    reward: ServiceProcessConfig = field(default_factory=ServiceProcessConfig)
    """The reward service."""
    reference: ServiceProcessConfig = field(default_factory=ServiceProcessConfig)
    """The reference service."""
    trainer: ServiceProcessConfig = field(default_factory=ServiceProcessConfig)
    """The trainer, and all its ranks."""
    critic: ServiceProcessConfig = field(default_factory=ServiceProcessConfig)
    """The critic."""


@dataclass(frozen=True)
class PoolConfig:
    """Rollout servers that are alike. What is null is as for a run without pools."""

    count: int = 1
    """Servers in the pool."""
    remote: bool = False
    """They are started elsewhere, by `argosy serve rollout --pool NAME`: the run waits for `count` of them. Needs
    argosy.membership.endpoints, and takes argosy.membership.prefix as it is."""
    engine: str | None = None
    """Their engine; null: actor_rollout_ref.rollout.name."""
    python: str | None = None
    """Their interpreter; null: argosy.services.rollout.python."""
    dtype: str | None = None
    """Their type; null: argosy.rollout.dtype."""
    device: str | None = None
    """Their device; null: argosy.rollout.device."""
    threads: int | None = None
    """Compute threads of each; null: argosy.rollout.threads."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables, beside argosy.services.rollout.env."""
    rollout: Mapping[str, Any] = field(default_factory=dict)
    """Keys of actor_rollout_ref.rollout that the engine reads, such as {max_model_len: 4096}. How tokens are drawn
    (temperature, top_p, n …) is the same for the whole run."""
    service: Mapping[str, Any] = field(default_factory=dict)
    """Keys of argosy.rollout that the engine reads, such as {slot_count: 16}."""


def looks_secret(name: str, value: str) -> bool:
    """Whether an environment variable is likely a secret, by its name or by the form of its value.

    >>> looks_secret("HF_TOKEN", "x"), looks_secret("TOKENIZERS_PARALLELISM", "false")
    (True, False)
    >>> looks_secret("HTTPS_PROXY", "http://me:word@proxy:3128")
    True
    """
    words = name.lower().split("_")
    named = not _SECRET_WORDS.isdisjoint(words) or words[-1].endswith(_SECRET_ENDINGS)
    return bool(value) and (named or _SECRET_VALUE.search(value) is not None)


def without_secrets(env: Mapping[str, Any]) -> dict[str, Any]:
    """The variables with HIDDEN in place of what looks like a secret."""
    return {name: HIDDEN if looks_secret(name, str(value)) else value for name, value in env.items()}
