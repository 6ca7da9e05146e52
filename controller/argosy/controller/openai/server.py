"""The HTTP server inside the controller's event loop, up while a run trains."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from argosy.controller.files import write_atomically
from argosy.types.errors import StateError

log = logging.getLogger(__name__)

ADDRESS_FILE = "openai.json"
REQUEST_TIMEOUT_S = 30.0
"""A connection whose first request isn't begun by then is closed."""

KEEP_ALIVE_S = 120
"""An idle connection is kept for longer than clients keep it (httpx and Node 5 s, Go 90 s): if both gave it up at one
time, a call that is just being sent would fail without an answer."""


class _Protocol(H11Protocol):
    """Closes connections that say nothing, or only half a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As uvicorn's, with a time limit."""
        super().connection_made(transport)
        self.loop.call_later(REQUEST_TIMEOUT_S, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the run has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


@asynccontextmanager
async def serve_app(
    app: Callable[..., Any], host: str, port: int, run_dir: Path, *, grace_s: float, said: dict[str, str]
) -> AsyncIterator[str]:
    """Serve while the block runs; yields the base address, which is in `openai.json` of the run folder too.

    At the end no new call is taken, running ones have `grace_s` to end, and then they are ended.

    Raises StateError if the port is taken.
    """
    listening = listen(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(grace_s)),
        backlog=1024,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve([listening]), name="openai")
    try:
        while not server.started:
            if serving.done():
                serving.result()
                raise StateError(f"the OpenAI endpoint on {address} ended while it started")
            await asyncio.sleep(0.01)
        described = {"base_url": f"{address}/v1"} | said
        write_atomically(run_dir / ADDRESS_FILE, json.dumps(described).encode())
        log.info("OpenAI endpoint: %s/v1", address)
        yield address
    finally:
        (run_dir / ADDRESS_FILE).unlink(missing_ok=True)
        server.should_exit = True
        await serving
        listening.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound there. Raises StateError if it can't be, such as on a port that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise StateError(
            f"argosy.openai.port: can't listen on {host}:{port} ({error.strerror}); choose another port, or 0 for a "
            "free one"
        ) from error
    listening.setblocking(False)
    return listening
