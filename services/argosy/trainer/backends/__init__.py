"""How a trainer computes, by name."""

from collections.abc import Callable

from argosy.trainer.backends.base import Backend, BackendState
from argosy.trainer.backends.single import SingleProcessBackend
from argosy.trainer.options import TrainerOptions
from argosy.types.errors import ConfigError


def _ranked(options: TrainerOptions) -> Backend:
    # Imported late: one process needs nothing of torch.distributed.
    from argosy.trainer.ranks.backend import make_ranked

    return make_ranked(options)


BACKENDS: dict[str, Callable[[TrainerOptions], Backend]] = {
    "single": SingleProcessBackend,
    "fsdp": _ranked,
    "megatron": _ranked,
}
"""`TrainerOptions.backend` → what makes it."""


def make_backend(options: TrainerOptions) -> Backend:
    """The backend of that name, with the model loaded. Raises ConfigError, which lists the known ones."""
    if options.backend not in BACKENDS:
        raise ConfigError(f"unknown trainer backend {options.backend!r}; known: {', '.join(BACKENDS)}")
    ranks = options.parallel.world_size
    if options.backend == "single" and ranks > 1:
        raise ConfigError(f"trainer backend 'single' is one process, but {ranks} ranks (n_gpus_per_node) are asked for")
    return BACKENDS[options.backend](options)


__all__ = ["BACKENDS", "Backend", "BackendState", "make_backend"]
