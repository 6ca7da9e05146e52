"""`argosy.reward`: who scores. One service with the keys here, or several by name in `argosy.reward.services`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.config.schema.reward_adapters import HttpRewardConfig, NemoGymConfig, RewardServerConfig, VerifiersConfig
from argosy.config.schema.reward_models import JudgeConfig, ScoringModelConfig
from argosy.config.schema.reward_sandbox import SandboxConfig

REWARD_KINDS = ("rules", "model", "judge", "http", "verifiers", "nemo_gym")
"""What a reward service of ours can be: `argosy.reward.build` makes them."""


@dataclass(frozen=True)
class RewardServiceConfig:
    """The reward service, or what several of them have in common."""

    kind: str = "rules"
    """What scores: "rules": the built-in verifiers, or the function of custom_reward_function; "model": a reward model;
    "judge": a language model that is asked; "http", "verifiers", "nemo_gym": somebody else's server."""
    services: Mapping[str, Any] = field(default_factory=dict)
    """Reward services, as {NAME: {kind: rules, data_sources: [gsm8k], …}}; what one can say is under
    `argosy.reward.services.NAME`. Empty: one service, with the keys here."""
    model: ScoringModelConfig = field(default_factory=ScoringModelConfig)
    """The reward model, of kind=model."""
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    """The language model that judges, of kind=judge."""
    server: RewardServerConfig = field(default_factory=RewardServerConfig)
    """The server that is asked, of kind=http, nemo_gym or verifiers."""
    http: HttpRewardConfig = field(default_factory=HttpRewardConfig)
    """How it is asked, of kind=http."""
    nemo_gym: NemoGymConfig = field(default_factory=NemoGymConfig)
    """How it is asked, of kind=nemo_gym."""
    verifiers: VerifiersConfig = field(default_factory=VerifiersConfig)
    """How it is asked, of kind=verifiers."""
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    """How code in responses is run, of kind=rules."""
    scorer_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Options of the built-in verifiers for every row of a data source, {openai/gsm8k: {method: strict}, all:
    {penalties: {length: {longest: 8000}}}}, of kind=rules; docs/rewards.md has them. A row's own
    extra_info.reward_kwargs win. Not for a custom function."""
    worker_count: int = 2
    """Worker processes that run scorers."""
    timeout_s: float = 10.0
    """Seconds that one sample's scorer may take; after that its worker is replaced and the sample is *failed*."""
    sample_attempts: int = 2
    """Most tries of a sample that a service failed to score (another replica's turn, if there is one) before it is left
    out of training; 1 never repeats. A service that says that repeating is forbidden is never asked twice."""
    max_error_rate: float = 0.5
    """Share of samples that may fail to be scored before the run ends with the failure: of each batch, and of the last
    error_window samples of each data source; 1 never ends it."""
    error_window: int = 64
    """Samples of one data source over which its failures are counted from batch to batch: a small source whose service
    is down ends the run too, though it is never a large share of a batch."""
    host: str = "127.0.0.1"
    """Address to listen on. Other than loopback needs argosy.allow_remote_hosts=true."""
    port: int = 0
    """Port to listen on; 0 lets the system choose a free one, which is then registered."""


@dataclass(frozen=True)
class NamedRewardConfig:
    """One of several reward services. What is null or empty is as for a run with one."""

    kind: str | None = None
    """What scores; null: argosy.reward.kind. Not for one with an address."""
    address: tuple[str, ...] = ()
    """host:port of servers that others run, in any language: replicas of each other. They need no membership. Empty:
    the launcher starts the service."""
    data_sources: tuple[str, ...] = ()
    """Which samples are its own: names, prefixes with * ("math/*"), or "*" for what no other service names. Empty: what
    it says that it knows."""
    weight: float = 1.0
    """Where several services score one sample, its reward is the sum of weight × score."""
    clip_min: float | None = None
    """Least score that counts; a lower one counts as this."""
    clip_max: float | None = None
    """Greatest score that counts."""
    normalize: bool = False
    """Bring its scores to mean 0 and standard deviation 1, by the running figures of all that it scored in training;
    before clipping."""
    required: bool = True
    """Where several services score one sample: if this one can't, nor can the sample be judged. false: the others'
    scores count without it."""
    max_error_rate: float | None = None
    """Share of its own last argosy.reward.error_window samples that may fail before the run ends; null: no limit of its
    own. A required one's failures fail samples, which argosy.reward.max_error_rate limits; an optional one's do not."""
    count: int = 1
    """Servers of it that the launcher starts: replicas of each other."""
    remote: bool = False
    """They are started elsewhere, by `argosy serve reward --name NAME`: the run waits for `count` of them. Needs
    argosy.membership.endpoints, and takes argosy.membership.prefix as it is."""
    python: str | None = None
    """Their interpreter; null: argosy.services.reward.python."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables, beside argosy.services.reward.env."""
    custom_reward_function: Mapping[str, Any] = field(default_factory=dict)
    """Keys of custom_reward_function: {path: …, name: …, reward_kwargs: {…}}."""
    service: Mapping[str, Any] = field(default_factory=dict)
    """Keys of argosy.reward that the service reads, such as {worker_count: 4}, nested as there."""
