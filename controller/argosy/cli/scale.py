"""`argosy scale KIND=COUNT…`: other numbers of servers, while a run goes on."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argosy.types.records import ScaleChange, ServerCount

DESCRIPTION = """\
Start or drain rollout and reward servers of a run on its own machine; training goes on meanwhile.

  argosy scale rollout=4                          four rollout servers, of the only run below this folder
  argosy scale rollout=4 --run checkpoints/p/e    of the run in that folder
  argosy scale rollout/fast=4 reward/code=2       of a pool (argosy.pools.fast), of a reward service

New servers take samples as soon as they have the current weights. One that is drained gets nothing new, and what it has
is finished there, or goes on elsewhere from its tokens; those with the highest numbers leave first. The next start of
the run's command has the numbers of its configuration again. `argosy members` shows how they come and go.

Not for runs with argosy.deterministic or argosy.colocated, which keep their rollout servers, nor for servers that were
started by `argosy serve`: start and stop those where they are.

Exit codes: 0 begun, 1 not possible in this run, 2 wrong arguments.
"""
_KIND = re.compile(r"^(?P<role>[a-z]+)(?:/(?P<pool>[\w.-]+))?=(?P<count>\d+)$")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `argosy scale`."""
    parser = subparsers.add_parser(
        "scale",
        help="start or drain servers of a run that is under way",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("wanted", nargs="+", metavar="KIND=COUNT", help="rollout=4, reward=2, rollout/POOL=4 …")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="the run's folder (trainer.default_local_dir)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(func=run_scale)


def run_scale(args: argparse.Namespace) -> int:
    """`argosy scale`."""
    import asyncio
    import dataclasses
    import json

    from argosy.cli.lookup import ask_controller

    wanted = [parse_count(word) for word in args.wanted]
    changes = asyncio.run(ask_controller(args.run, lambda client: client.scale(wanted)))
    if args.json:
        print(json.dumps({"changes": [dataclasses.asdict(change) for change in changes]}))
    else:
        for change in changes:
            print(describe(change))
    return 0


def parse_count(word: str) -> ServerCount:
    """Of "rollout=4" or "rollout/POOL=4". Raises InvalidInputError.

    >>> parse_count("rollout/fast=4")
    ServerCount(role='rollout', count=4, pool='fast')
    """
    from argosy.types.errors import InvalidInputError
    from argosy.types.records import ServerCount

    match = _KIND.match(word)
    if match is None:
        raise InvalidInputError(f"got {word!r}; wants KIND=COUNT such as rollout=4, or rollout/POOL=4, reward/NAME=2")
    return ServerCount(match["role"], int(match["count"]), match["pool"] or "")


def describe(change: ScaleChange) -> str:
    """For people."""
    kind = change.role if change.pool == "default" else f"{change.role}/{change.pool}"
    parts = [f"{kind}: {change.before} → {change.count}"]
    if change.started:
        parts.append(f"starting {', '.join(change.started)}")
    if change.draining:
        parts.append(f"draining {', '.join(change.draining)}")
    if change.before == change.count:
        parts.append("nothing to do")
    return "; ".join(parts)
