"""`argosy.reward.model`, `argosy.reward.judge`, `reward_model.enable`: what must be there for the kind that scores."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from argosy.config.schema import Config
from argosy.config.schema.reward_models import EndpointConfig, ScoringModelConfig

_MODEL, _JUDGE = "argosy.reward.model", "argosy.reward.judge"
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s/:@\[\]]+):\d{1,5}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_reward_models(config: Config) -> Iterator[str]:
    """The sections of kinds "model" and "judge", where one of them scores."""
    yield from _check_enable(config)
    if config.argosy.reward.services:
        return  # each service's own configuration is looked at by itself
    if config.reward_kind == "model":
        yield from _check_model(config)
    elif config.reward_kind == "judge":
        yield from _check_judge(config)


def check_own_weights(config: Config) -> Iterator[str]:
    """A server of a run that answers before the trainer's weights have come would train on another model's samples."""
    if config.argosy.rollout.start_ready:
        yield (
            "argosy.rollout.start_ready: got true for a training run, whose rollout servers wait for the trainer's "
            "weights; it is for `argosy serve rollout` of a model that isn't trained, such as a judge"
        )


def _check_enable(config: Config) -> Iterator[str]:
    if not config.reward_model.enable:
        return
    key = "reward_model.enable: got true"
    if config.argosy.reward.services:
        yield f"{key} with argosy.reward.services: say there which of them is the model, as kind: model"
    elif config.argosy.reward.kind not in ("rules", "model"):
        yield f"{key} with argosy.reward.kind={config.argosy.reward.kind}; one service is one kind"
    elif config.custom_reward_function.path is not None:
        yield (
            f"{key} with custom_reward_function.path: either scores every sample; for both, name two services in "
            "argosy.reward.services"
        )


def _check_model(config: Config) -> Iterator[str]:
    model = config.argosy.reward.model
    remote = model.endpoint.url is not None
    if model.path is None and not remote:
        yield f"{_MODEL}.path: is needed with argosy.reward.kind=model, or {_MODEL}.endpoint.url"
    if remote:
        yield from _check_endpoint(f"{_MODEL}.endpoint", model.endpoint)
        if model.path is None and model.endpoint.model is None:
            yield f"{_MODEL}.endpoint.model: is needed with {_MODEL}.endpoint.url: the server's name for the model"
        if model.path is None and model.input_tokenizer is not None and model.api not in ("chat", "score"):
            yield f"{_MODEL}.path: is needed with api={model.api}: the folder with the reward model's tokenizer"
        yield from _check_unused(model)


def _check_unused(model: ScoringModelConfig) -> Iterator[str]:
    """What is for a model that is loaded here."""
    bare = ScoringModelConfig()
    for name in ("dtype", "device", "threads", "max_batch_tokens", "max_batch_rows", "min_fill"):
        if getattr(model, name) != getattr(bare, name):
            yield f"{_MODEL}.{name}: got {getattr(model, name)} with endpoint.url, whose server decides; leave it out"


def _check_judge(config: Config) -> Iterator[str]:
    judge = config.argosy.reward.judge
    if judge.endpoint.url is not None:
        yield from _check_endpoint(f"{_JUDGE}.endpoint", judge.endpoint)
        if judge.endpoint.model is None:
            yield f"{_JUDGE}.endpoint.model: is needed with {_JUDGE}.endpoint.url: the server's name for the judge"
        if judge.rollouts:
            yield f"{_JUDGE}.rollouts: got {list(judge.rollouts)} with {_JUDGE}.endpoint.url: set one of them"
    elif not judge.rollouts:
        yield f"{_JUDGE}: nobody is asked with argosy.reward.kind=judge: set endpoint.url, or rollouts"
    elif judge.tokenizer_path is None:
        yield f"{_JUDGE}.tokenizer_path: is needed with rollouts: the folder with the judge's tokenizer"
    for address in judge.rollouts:
        if not _ADDRESS.fullmatch(address):
            yield f"{_JUDGE}.rollouts: got {address!r}, wants host:port such as localhost:50051"
    if not (math.isfinite(judge.lowest) and math.isfinite(judge.highest) and judge.lowest < judge.highest):
        yield f"{_JUDGE}.lowest: got {judge.lowest:g} with highest={judge.highest:g}; wants lowest < highest"


def _check_endpoint(path: str, endpoint: EndpointConfig) -> Iterator[str]:
    parts = urlsplit(endpoint.url or "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        yield f"{path}.url: wants http://host… or https://host…, got {endpoint.url!r}"
    elif parts.username is not None or parts.password is not None:
        yield f"{path}.url: must hold no user or password: name an environment variable in {path}.api_key_env"
    if endpoint.api_key_env is not None and not _VARIABLE.fullmatch(endpoint.api_key_env):
        yield f"{path}.api_key_env: wants the name of an environment variable, not what is in it"


def check_judge_files(config: Config) -> Iterator[str]:
    """Templates that are files are there."""
    if config.reward_kind != "judge" or config.argosy.reward.services:
        return
    for name in ("prompt", "system"):
        value = getattr(config.argosy.reward.judge, name)
        inline = not value or "\n" in value or "{" in value
        if not inline and not Path(value).expanduser().is_file():
            yield f"{_JUDGE}.{name}: there is no file {value!r}; a template itself has braces or several lines"
