"""`argosy rollout key=value …`: generate, score and record, without training."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from argosy.config import Config
    from argosy.controller.recording.rollouts import RolloutReport

DESCRIPTION = """\
Generate answers with the model's own weights, score them, and record them: one file per step, which `argosy train
argosy.replay.path=…` trains from and which any reader of Parquet opens (docs/replay.md). Keys are those of
`argosy train`; rollout and reward servers are started, no trainer is.

Examples:
  argosy rollout actor_rollout_ref.model.path=MODEL data.train_files=train.parquet data.train_batch_size=64 \\
      actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=8 --steps 4 --out rollouts
  argosy rollout --config run.yaml                       the whole data set, trainer.total_epochs times

The same command again goes on after the last recorded step.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "rollout",
        help="generate, score and record, without training",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for `argosy train`")
    parser.add_argument("--config", action="append", default=[], metavar="FILE", help="YAML with keys; may be repeated")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of data.train_batch_size prompts (default: all)")
    parser.add_argument("--out", metavar="DIR", help="the record's folder (default: record/ in the run folder)")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object on stdout")
    parser.set_defaults(func=rollout)


def rollout(args: argparse.Namespace) -> int:
    """Check, run, report."""
    from rich.console import Console

    from argosy.config import load
    from argosy.types.errors import InvalidInputError

    if args.steps is not None and args.steps < 1:
        raise InvalidInputError(f"--steps must be at least 1, got {args.steps}")
    overrides = [*args.overrides, "argosy.rollout_only=true"]
    if args.steps is not None:
        overrides.append(f"trainer.total_training_steps={args.steps}")
    config = load(overrides, args.config)
    if args.out is not None:
        config = config.with_values({"argosy.record.path": str(Path(args.out).expanduser().resolve())})
    return run(config, Console(stderr=args.json), as_json=args.json)


def run(config: Config, console: Console, *, as_json: bool) -> int:
    """What `argosy rollout` and `argosy train argosy.rollout_only=true` do with a loaded configuration."""
    import dataclasses
    import json

    from argosy.config import validate
    from argosy.controller.recording.rollouts import run_rollouts

    validate(config)
    report = run_rollouts(config, console)
    if as_json:
        print(json.dumps(dataclasses.asdict(report)))
    else:
        _print(report, console)
    return 0


def _print(report: RolloutReport, console: Console) -> None:
    score = "no sample has a score" if report.mean_score is None else f"mean score {report.mean_score:.4g}"
    console.print(
        f"{report.steps} steps, {report.prompts} prompts, {report.samples} samples, {report.tokens} tokens; {score}",
        highlight=False,
    )
    console.print(f"{report.duration_s:.1f} s, {report.tokens_per_s:.0f} tokens/s", highlight=False)
    console.print(f"record: {report.record}", highlight=False, soft_wrap=True)
    console.print(f"train from it: argosy train argosy.replay.path={report.record} …", highlight=False, soft_wrap=True)
