"""`argosy ledger RUN_DIR`: what became of every sample of a run."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

DESCRIPTION = """\
Show the ledger of a run: how many samples were trained or dropped and why, how old they were, which servers answered.
Works on a run that is under way and on one that has ended. docs/ledger.md explains the figures.

  argosy ledger checkpoints/project/experiment                      a summary
  argosy ledger checkpoints/project/experiment --sample e0-p12-k3   one sample's life; e0-p12: its whole group
  argosy ledger checkpoints/project/experiment --step 7             what step 7 finished
  argosy ledger checkpoints/project/experiment --check              verify every checksum and every invariant

Exit codes: 0 fine, 1 the ledger is damaged or does not balance, 2 wrong arguments.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `argosy ledger`."""
    parser = subparsers.add_parser(
        "ledger",
        help="what became of every sample of a run",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        help="the run's folder (trainer.default_local_dir), or the URL of its copies (trainer.default_hdfs_dir)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--sample", metavar="ID", help="the life of one sample, or of a whole group")
    what.add_argument("--step", type=int, metavar="N", help="the samples that step N trained or dropped")
    what.add_argument("--check", action="store_true", help="verify checksums and invariants of all segments")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(func=run_ledger)


def run_ledger(args: argparse.Namespace) -> int:
    """`argosy ledger`."""
    if "://" not in args.run_dir:
        return _show(args, Path(args.run_dir))
    from argosy.controller.copies import fetch_books

    with tempfile.TemporaryDirectory(prefix="argosy-ledger-") as folder:
        return _show(args, fetch_books(args.run_dir, Path(folder)))


def _show(args: argparse.Namespace, run_dir: Path) -> int:
    from argosy.controller.ledger.command import show_check, show_sample, show_step, show_summary

    if args.sample is not None:
        return show_sample(run_dir, args.sample, as_json=args.json)
    if args.step is not None:
        return show_step(run_dir, args.step, as_json=args.json)
    if args.check:
        return show_check(run_dir, as_json=args.json)
    return show_summary(run_dir, as_json=args.json)
