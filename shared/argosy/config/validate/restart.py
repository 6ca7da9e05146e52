"""Can a trainer be started again as `argosy.restart` says?"""

from __future__ import annotations

from collections.abc import Iterator

from argosy.config.schema import Config
from argosy.config.validate.parallel import check_parallel_sizes, check_ranks


def check_restart(config: Config) -> Iterator[str]:
    """With other ranks, or with a rollout server's weights."""
    yield from _check_ranks(config)
    if config.argosy.restart.weights == "rollout":
        yield from _check_weights(config)


def _check_ranks(config: Config) -> Iterator[str]:
    ranks = config.argosy.restart.ranks
    if ranks is None or ranks == config.trainer.n_gpus_per_node:
        return
    again = config.with_values({"trainer.n_gpus_per_node": ranks})
    for check in (check_parallel_sizes, check_ranks):
        for problem in check(again):
            yield f"argosy.restart.ranks: got {ranks}, with which a trainer can't be started again: {problem}"
    if config.argosy.deterministic:
        yield (
            f"argosy.restart.ranks: got {ranks} with argosy.deterministic=true and trainer.n_gpus_per_node="
            f"{config.trainer.n_gpus_per_node}: sums over other ranks round otherwise; wants null"
        )


def _check_weights(config: Config) -> Iterator[str]:
    """The weights of a step are all that went, and the optimizer's state: nothing else was in the middle of it."""
    hindrances = {
        "argosy.deterministic=true: the unbroken run had another optimizer state": config.argosy.deterministic,
        "groups that are under way between two steps (argosy.max_staleness, argosy.stream)": config.argosy.streams,
        "a critic, of which no server has newer weights": config.needs_critic,
        "LoRA: servers have the adapter merged into the weights": config.actor_rollout_ref.model.uses_lora,
        "a replay, which has no rollout servers": config.argosy.replay.path is not None,
    }
    for hindrance, is_so in hindrances.items():
        if is_so:
            yield f"argosy.restart.weights: got rollout with {hindrance}; wants checkpoint"
