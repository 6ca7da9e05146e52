"""`argosy train key=value …`: one training run, with everything it needs started on this machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argosy.controller.candidacy import Ended
    from argosy.controller.report import RunReport

DESCRIPTION = """\
Train with verl's configuration keys. By default the controller, rollout, reward, reference and trainer run as separate
processes on this machine, found through a real etcd; argosy.placement=inprocess runs the same loop in one process.
argosy.placement=fleet starts nothing: `argosy serve …` has started the services. Start it several times, with the same
argosy.run_id: one leads, the others stand by and take over when it is gone (docs/placement.md).

Examples:
  argosy train algorithm.adv_estimator=grpo actor_rollout_ref.model.path=MODEL data.train_files=train.parquet \\
      data.val_files=val.parquet data.train_batch_size=8 actor_rollout_ref.rollout.n=8 trainer.total_training_steps=50
  argosy train --config run.yaml trainer.experiment_name=again

The same command again resumes from the last checkpoint (trainer.resume_mode=auto). Keys and what they do:
`argosy config show`, docs/configuration.md; how verl's keys fare here: `argosy config coverage`.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "train",
        help="run a training job",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="configuration keys, Hydra's override grammar"
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="YAML with keys; may be given again; overrides win",
    )
    parser.add_argument("--json", action="store_true", help="print the final report as one JSON object on stdout")
    parser.add_argument("--quiet-config", action="store_true", help="don't print the resolved configuration")
    parser.set_defaults(func=train)


def train(args: argparse.Namespace) -> int:
    """Validate, run, report."""
    import dataclasses
    import json

    from rich.console import Console

    from argosy.config import load, validate
    from argosy.config.render import print_config
    from argosy.controller.entry import run_training
    from argosy.controller.entry_fleet import run_in_fleet

    console = Console(stderr=args.json)
    config = load(args.overrides, args.config)
    if config.argosy.rollout_only:
        from argosy.cli.rollout import run

        return run(config, console, as_json=args.json)
    validate(config)
    if not args.quiet_config:
        print_config(config, console)
    fleet = config.argosy.placement == "fleet"
    report: RunReport | Ended = run_in_fleet(config, console) if fleet else run_training(config, console)
    if args.json:
        print(json.dumps(dataclasses.asdict(report)))
    return 0
