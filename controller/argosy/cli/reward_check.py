"""`argosy reward check ADDRESS`: does a server of rewards, in whatever language, keep the contract?"""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """\
Call a running server of argosy.api.reward.v1.RewardService and check that it keeps the contract: one outcome for each
item, limits, odd texts, deadlines, cancelled and concurrent calls. docs/rewards-languages.md says what is wanted.

Exit codes: 0 all checks passed (warnings are allowed), 1 some failed, 2 wrong arguments.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `argosy reward check`."""
    parser = commands.add_parser(
        "check",
        help="run the conformance checks against a server of rewards",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("address", metavar="ADDRESS", help="host:port of the server")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="longest wait for each call (default 10)"
    )
    parser.add_argument(
        "--sample-file",
        type=Path,
        metavar="FILE",
        help="JSON lines of real samples (data_source, response_text, ground_truth, …) to judge besides",
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        default=256,
        metavar="N",
        help="token ids that are made up for servers with needs_token_ids are below it (default 256)",
    )
    parser.set_defaults(func=run_check)


def run_check(args: argparse.Namespace) -> int:
    """`argosy reward check`."""
    from argosy.reward.conformance.command import check

    return check(
        args.address,
        timeout_s=args.timeout,
        sample_file=args.sample_file,
        vocabulary_size=args.vocab_size,
        as_json=args.json,
    )
