"""The endpoint of a run, from the configuration: nothing of it is loaded where it isn't enabled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from argosy.config import Config
from argosy.controller.context import RunContext
from argosy.controller.data.sampler import PromptSampler
from argosy.types.errors import ConfigError

if TYPE_CHECKING:
    from argosy.controller.openai.calls import Generates
    from argosy.controller.openai.source import SessionSource


def check_endpoint(config: Config) -> None:
    """What keeps the endpoint from opening, told before any process starts: it opens after the first validation.

    Raises ConfigError: the packages of the HTTP server aren't installed, or there is no API key where one is named;
    StateError: the port is taken.
    """
    options = config.argosy.openai
    if not options.enable:
        return
    _check_installed()
    from argosy.controller.openai.guards import Keys
    from argosy.controller.openai.server import listen

    Keys(config)
    if config.argosy.placement != "fleet":  # where another controller may lead the run, and have it open, for now
        listen(options.host, options.port).close()


def _check_installed() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"argosy.openai.enable: the package {error.name} is missing: pip install argosy[controller]"
        ) from error


@asynccontextmanager
async def open_endpoint(ctx: RunContext, rollout: Generates, producer: object) -> AsyncIterator[str | None]:
    """Serve `argosy.openai` while the block runs; yields its address, or None where it isn't enabled.

    `producer`: Of the run's steps; sessions are taken where its `source` is a `SessionSource`.

    Raises:
        ConfigError: The packages of the HTTP server are not installed, or there is no API key where one is named.
        StateError: The port is taken.
    """
    config = ctx.config
    if not config.argosy.openai.enable:
        yield None
        return
    _check_installed()
    from argosy.controller.agents.parsers import parser
    from argosy.controller.data.prompts import tokenizer_of
    from argosy.controller.openai.calls import Caller
    from argosy.controller.openai.desk import SessionDesk
    from argosy.controller.openai.routes import build_app
    from argosy.controller.openai.server import serve_app
    from argosy.controller.openai.source import SessionSource

    options = config.argosy.openai
    caller = Caller(config, rollout, tokenizer_of(config), parser(config.actor_rollout_ref.rollout.multi_turn.format))
    source = getattr(producer, "source", None)
    desk = SessionDesk(ctx, source) if isinstance(source, SessionSource) else None
    address = [""]
    app = build_app(ctx, caller, desk, lambda: address[0])
    said = {"run_id": ctx.run_id, "model": caller.model_name, "source": options.source}
    run_dir = config.run_folder.resolve()
    async with serve_app(app, options.host, options.port, run_dir, grace_s=config.argosy.stop_grace_s, said=said) as at:
        address[0] = at
        yield at


def session_source(ctx: RunContext, sampler: PromptSampler) -> SessionSource:
    """The group source of `argosy.openai.source=sessions`."""
    from argosy.controller.data.prompts import tokenizer_of
    from argosy.controller.openai.source import SessionSource

    return SessionSource(ctx, sampler, tokenizer_of(ctx.config))
