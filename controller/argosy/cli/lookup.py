"""What `argosy status` and `argosy members` share: finding the run, asking its controller, showing it each second."""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import RenderableType

    from argosy.rpc.clients.controller import ControllerClient

Answer = TypeVar("Answer")


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
    """Ask once, or each second. A controller that is replaced meanwhile is looked up again."""
    import asyncio
    import json

    from rich.console import Console
    from rich.live import Live

    def answer() -> Answer:
        return asyncio.run(_ask(args, ask))

    if not args.watch:
        found = answer()
        if args.json:
            print(json.dumps(plain(found)))
        else:
            Console().print(show(found))
        return 0
    if args.json:
        while not is_over(found := answer()):
            print(json.dumps(plain(found)), flush=True)
            time.sleep(1)
        print(json.dumps(plain(found)), flush=True)
        return 0
    with Live(console=Console(), auto_refresh=False, transient=False) as live:
        while not is_over(found := answer()):
            live.update(show(found), refresh=True)
            time.sleep(1)
        live.update(show(found), refresh=True)
    return 0


async def _ask(args: argparse.Namespace, ask: Callable[[ControllerClient], Awaitable[Answer]]) -> Answer:
    from argosy.controller.running import find_endpoint
    from argosy.rpc.clients.controller import ControllerClient

    client = ControllerClient(args.address or find_endpoint(args.run))
    try:
        return await ask(client)
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
