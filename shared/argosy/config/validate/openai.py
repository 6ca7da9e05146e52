"""Can the OpenAI-compatible endpoint be served, and do its sessions make groups?"""

from __future__ import annotations

from collections.abc import Iterator

from argosy.algorithms.catalog import estimator_needs
from argosy.config.schema import Config
from argosy.config.validate.relations import is_loopback

_KEY = "argosy.openai"


def check_openai(config: Config) -> Iterator[str]:
    """Address and key; what training from sessions can't do with."""
    chosen, n = config.argosy.openai, config.actor_rollout_ref.rollout.n
    if not is_loopback(chosen.host):
        if not config.argosy.allow_remote_hosts:
            yield (
                f"{_KEY}.host: got {chosen.host!r}; calls aren't encrypted, so only loopback is accepted; on a network "
                "that you trust set argosy.allow_remote_hosts=true"
            )
        if chosen.api_key_env is None:
            yield f"{_KEY}.api_key_env: must name a variable that holds a key, since host={chosen.host} is not loopback"
    if chosen.min_rewarded > n:
        yield f"{_KEY}.min_rewarded: got {chosen.min_rewarded}, more than actor_rollout_ref.rollout.n={n}"
    if chosen.enable and config.argosy.colocated:
        yield f"{_KEY}.enable: got true with argosy.colocated=true: servers that sleep can't answer; set one false"
    if chosen.enable and (config.argosy.replay.path is not None or config.argosy.rollout_only):
        other = "argosy.rollout_only=true" if config.argosy.rollout_only else "argosy.replay.path"
        yield f"{_KEY}.enable: got true with {other}, which trains nothing from new samples; leave one of them out"
    if chosen.source == "sessions":
        yield from _check_sessions(config)


def _check_sessions(config: Config) -> Iterator[str]:
    if not config.argosy.openai.enable:
        yield f"{_KEY}.source: got sessions with {_KEY}.enable=false: no session could begin; set enable=true"
    if "baseline" in estimator_needs(config.algorithm.adv_estimator):
        yield (
            f"algorithm.adv_estimator: got {config.algorithm.adv_estimator} with {_KEY}.source=sessions; a session has "
            "no greedy answer beside it to be its baseline"
        )
