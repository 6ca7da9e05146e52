"""`argosy members`: who is in a run's fleet, in which state, with what work."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from argosy.cli.lookup import add_arguments, ago, run_command

if TYPE_CHECKING:
    from rich.console import RenderableType

    from argosy.rpc.clients.controller import ControllerClient
    from argosy.types.records import Member

DESCRIPTION = """\
Who is in the fleet of a run: each service process with its state, the weights that it holds, the samples that it has,
and the last thing that went wrong with it.

  argosy members                         of the only run below this folder
  argosy members --run runs/demo --watch
  argosy members --role rollout --json

States: joining (it comes up), stale (up, and waits for weights), ready, draining (finishes and leaves), quarantined (it
stands still: nothing is sent to it until it moves).
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `argosy members`."""
    parser = subparsers.add_parser(
        "members",
        help="who is in the fleet of a run",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--role", default="", help="only rollout, reward, reference, trainer, critic or controller")
    add_arguments(parser)
    parser.set_defaults(func=run_members)


def run_members(args: argparse.Namespace) -> int:
    """`argosy members`."""

    async def ask(client: ControllerClient) -> Sequence[Member]:
        return await client.list_members(args.role)

    return run_command(args, ask, table, plain, lambda members: False)


def plain(members: Sequence[Member]) -> dict[str, Any]:
    """For machines."""
    return {
        "members": [
            {
                "member_id": one.member_id,
                "role": one.role,
                "pool": one.pool,
                "engine": one.engine,
                "address": one.address,
                "incarnation": one.incarnation,
                "state": one.state.value,
                "version": None if one.version is None else one.version.short,
                "samples": one.sample_count,
                "idle_s": round(one.idle_s, 3),
                "error": one.error,
                "error_at": one.error_at or None,
            }
            for one in members
        ]
    }


def table(members: Sequence[Member]) -> RenderableType:
    """For people. Errors stand below: they are sentences, and a column would cut them into words."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    found = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("member", "state", "weights", "samples", "last tokens", "address"):
        found.add_column(name, justify="right" if name == "samples" else "left", no_wrap=True)
    errors = []
    for one in members:
        kind = f"{one.member_id} ({one.engine})" if one.engine else one.member_id
        version = "" if one.version is None else one.version.short
        idle = f"{ago(one.idle_s)} ago" if one.sample_count else ""
        colour = {"ready": "green", "quarantined": "red", "stale": "yellow", "draining": "yellow"}.get(one.state.value)
        state = f"[{colour}]{one.state.value}[/]" if colour else one.state.value
        found.add_row(kind, state, version, str(one.sample_count or ""), idle, one.address)
        if one.error:
            errors.append(f"[bold]{one.member_id}[/], {ago(time.time() - one.error_at)} ago: {escape(one.error)}")
    return Group(found, *(["", "last errors", *errors] if errors else []))
