"""What `argosy status` and `argosy members` share: finding the run, asking its controller, showing it each second."""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import RenderableType

    from argosy.rpc.clients.controller import ControllerClient

Answer = TypeVar("Answer")

PAUSE_S = 1.0
GONE_AFTER_S = 20.0
"""A standby leads within the time of a lease and some seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which run, and how to show it."""
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="the run's folder (trainer.default_local_dir)")
    parser.add_argument("--address", metavar="HOST:PORT", help="of the run's controller, in place of --run")
    parser.add_argument("--watch", action="store_true", help="show it again each second, until Ctrl-C or the run's end")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (a line each time with --watch)")


def run_command(
    args: argparse.Namespace,
    ask: Callable[[ControllerClient], Awaitable[Answer]],
    show: Callable[[Answer], RenderableType],
    plain: Callable[[Answer], Any],
    is_over: Callable[[Answer], bool],
) -> int:
    """Ask once, or each second until the run is over."""
    import asyncio
    import json

    from rich.console import Console
    from rich.live import Live

    if not args.watch:
        found = asyncio.run(_ask(args, ask))
        if args.json:
            print(json.dumps(plain(found)))
        else:
            Console().print(show(found))
        return 0
    answers = _answers(args, ask, is_over)
    if args.json:
        for found in answers:
            print(json.dumps(plain(found)), flush=True)
        return 0
    console = Console()
    if not console.is_terminal:  # a Live shows its last picture only
        for found in answers:
            console.print(show(found))
            console.file.flush()
        return 0
    with Live(console=console, auto_refresh=False) as live:
        for found in answers:
            live.update(show(found), refresh=True)
    return 0


def _answers(
    args: argparse.Namespace,
    ask: Callable[[ControllerClient], Awaitable[Answer]],
    is_over: Callable[[Answer], bool],
) -> Iterator[Answer]:
    """One each second. A controller that has gone may be replaced by another; if none comes, the run is over."""
    import asyncio

    from argosy.types.errors import UnavailableError

    heard_at: float | None = None
    while True:
        try:
            found = asyncio.run(_ask(args, ask))
        except UnavailableError:
            if heard_at is None:  # it was never there
                raise
            if time.monotonic() - heard_at > GONE_AFTER_S:
                return
        else:
            heard_at = time.monotonic()
            yield found
            if is_over(found):
                return
        time.sleep(PAUSE_S)


async def _ask(args: argparse.Namespace, ask: Callable[[ControllerClient], Awaitable[Answer]]) -> Answer:
    return await ask_controller(args.run, ask, address=args.address)


async def ask_controller(
    run: Path | None, ask: Callable[[ControllerClient], Awaitable[Answer]], *, address: str | None = None
) -> Answer:
    """What the controller of a folder's run says, or the one at `address`. UnavailableError where none answers."""
    from argosy.controller.running import find_endpoint
    from argosy.rpc.clients.controller import ControllerClient
    from argosy.types.errors import UnavailableError

    client = ControllerClient(address or find_endpoint(run))
    try:
        return await ask(client)
    except UnavailableError as error:
        if address is not None:
            raise
        # A run that was killed leaves its address behind.
        raise UnavailableError(
            f"{error.message}. If the run was killed, its `argosy train` once more goes on from the last checkpoint"
        ) from error
    finally:
        await client.close()


def ago(seconds: float) -> str:
    """A length of time for people.

    >>> ago(5), ago(130), ago(7300)
    ('5 s', '2 min 10 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
