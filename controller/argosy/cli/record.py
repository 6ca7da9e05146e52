"""`argosy record show PATH`: what is in a record of rollouts."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """\
Show a record of rollouts (argosy.record.*, `argosy rollout`): its steps, one step in detail, or the samples themselves.

  argosy record show checkpoints/project/experiment              all steps
  argosy record show record --step 3                             lengths, outcomes and versions of one step
  argosy record show record --step 3 --samples 2                 what was asked, answered and judged
  argosy record show record --check                              verify every checksum

Exit codes: 0 fine, 1 damaged, 2 no such record or step.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `argosy record show`."""
    parser = subparsers.add_parser("record", help="look at recorded rollouts")
    commands = parser.add_subparsers(dest="record_command", required=True, metavar="COMMAND")
    show = commands.add_parser(
        "show",
        help="steps and samples of a record",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    show.add_argument("path", type=Path, metavar="PATH", help="a record, or the folder of a run that has one")
    show.add_argument("--step", type=int, metavar="N", help="one step in detail")
    show.add_argument("--samples", type=int, default=0, metavar="N", help="with --step: print its first N samples")
    show.add_argument("--check", action="store_true", help="verify the checksum of every step")
    show.add_argument("--json", action="store_true", help="one JSON object on stdout")
    show.set_defaults(func=show_record)


def show_record(args: argparse.Namespace) -> int:
    """Print what was asked for."""
    import json

    from argosy.controller.recording.store import Record
    from argosy.controller.recording.summary import sample_details, step_details, step_rows, summary_of
    from argosy.types.errors import InvalidInputError

    if args.samples and args.step is None:
        raise InvalidInputError("--samples needs --step N")
    record = Record(args.path)
    if args.check:
        for step in record.steps:
            record.check(step)
    if args.step is not None:
        found = step_details(record, args.step)
        if args.samples:
            found["first_samples"] = list(sample_details(record, args.step, args.samples))
    else:
        found = summary_of(record) | {"by_step": step_rows(record), "checked": args.check}
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        _print(found)
    return 0


def _print(found: dict[str, object]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for name, value in found.items():
        if name == "by_step":
            table = Table(box=None)
            rows = value if isinstance(value, list) else []
            for heading in ("step", "prompts", "samples", "tokens", "mean_score", "mb"):
                table.add_column(heading, justify="right")
            for row in rows:
                table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row.values()))
            console.print(table)
        elif name == "first_samples":
            for sample in value if isinstance(value, list) else []:
                console.rule(str(sample["sample_id"]))
                for key, cell in sample.items():
                    console.print(f"{key}: {cell}", highlight=False, markup=False, soft_wrap=True)
        else:
            console.print(f"{name}: {value}", highlight=False, markup=False, soft_wrap=True)
