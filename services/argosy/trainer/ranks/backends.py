"""The backends that can run on several ranks, by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from argosy.types.errors import ConfigError

if TYPE_CHECKING:
    from argosy.trainer.options import TrainerOptions
    from argosy.trainer.ranks.commands import RankBackend
    from argosy.trainer.ranks.rendezvous import Rendezvous

RANK_BACKENDS: dict[str, tuple[str, str]] = {
    "fsdp": ("argosy.trainer.backends.fsdp", "FsdpBackend"),
    "megatron": ("argosy.trainer.backends.megatron.backend", "MegatronBackend"),
}
"""`TrainerOptions.backend` → module and class, called as (options, rendezvous) on each rank. Imported when used."""


def rank_backend_maker(name: str) -> Callable[[TrainerOptions, Rendezvous], RankBackend]:
    """The class of that name. Raises ConfigError, which lists the known ones."""
    if name not in RANK_BACKENDS:
        raise ConfigError(f"trainer backend {name!r} runs in one process; of several ranks: {', '.join(RANK_BACKENDS)}")
    module, attribute = RANK_BACKENDS[name]
    return cast("Callable[[TrainerOptions, Rendezvous], RankBackend]", getattr(import_module(module), attribute))
