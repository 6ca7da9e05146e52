"""How a trainer computes, by name. FSDP and Megatron join here as further lines."""

from argosy.trainer.backends.base import Backend, BackendState
from argosy.trainer.backends.single import SingleProcessBackend
from argosy.trainer.options import TrainerOptions
from argosy.types.errors import ConfigError

BACKENDS: dict[str, type[SingleProcessBackend]] = {
    "single": SingleProcessBackend,
}
"""`TrainerOptions.backend` → its class."""


def make_backend(options: TrainerOptions) -> Backend:
    """The backend of that name, with the model loaded. Raises ConfigError, which lists the known ones."""
    if options.backend not in BACKENDS:
        raise ConfigError(f"unknown trainer backend {options.backend!r}; known: {', '.join(BACKENDS)}")
    return BACKENDS[options.backend](options)


__all__ = ["BACKENDS", "Backend", "BackendState", "make_backend"]
