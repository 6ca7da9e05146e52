"""`argosy status`: how far a run is, what its loop waits for, and what stands still."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from argosy.cli.lookup import add_arguments, ago, run_command

if TYPE_CHECKING:
    from rich.table import Table

    from argosy.rpc.clients.controller import ControllerClient
    from argosy.types.records import RunStatus

DESCRIPTION = """\
How far a run is: its step, the weights that are served, what its loop waits for and since when. Where that takes much
longer than it did before, a line names the member that it waits for.

  argosy status                          of the only run below this folder
  argosy status --run runs/demo --watch
  argosy status --json

`argosy members` shows the processes of the run.
"""
_SHOWN = (
    "critic/score/mean",
    "val-core/",
    "staleness/mean",
    "perf/throughput",
    "timing_s/step",
    "response_length/mean",
)
"""Metrics of the last step that are worth a line."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `argosy status`."""
    parser = subparsers.add_parser(
        "status",
        help="how far a run is, and what it waits for",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.set_defaults(func=run_status)


def run_status(args: argparse.Namespace) -> int:
    """`argosy status`."""

    async def ask(client: ControllerClient) -> RunStatus:
        return await client.get_run()

    return run_command(args, ask, table, plain, lambda run: run.state in ("finished", "failed"))


def plain(run: RunStatus) -> dict[str, Any]:
    """For machines."""
    return {
        "run_id": run.run_id,
        "state": run.state,
        "step": run.step,
        "total_steps": run.total_steps,
        "term": run.term,
        "version": None if run.version is None else run.version.short,
        "stage": run.stage,
        "stage_since": run.stage_since or None,
        "stall": run.stall,
        "message": run.message,
        "metrics": dict(run.metrics),
    }


def table(run: RunStatus) -> Table:
    """For people."""
    from rich.markup import escape
    from rich.table import Table

    found = Table(box=None, show_header=False, pad_edge=False)
    found.add_row("run", run.run_id)
    found.add_row("state", run.state)
    found.add_row("step", f"{run.step} of {run.total_steps}" if run.total_steps else str(run.step))
    found.add_row("weights", "none yet" if run.version is None else run.version.short)
    waited = f" for {ago(time.time() - run.stage_since)}" if run.stage_since else ""
    found.add_row("waits for", f"{run.stage}{waited}" if run.stage else "nothing")
    found.add_row("term", str(run.term))
    for name in sorted(run.metrics):
        if name.startswith(_SHOWN):
            found.add_row(name, f"{run.metrics[name]:.4g}")
    if run.stall:
        found.add_row("[red]stalled[/]", escape(run.stall))
    if run.message:
        found.add_row("message", escape(run.message))
    return found
