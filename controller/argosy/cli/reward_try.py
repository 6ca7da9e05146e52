"""`argosy reward try`: what a built-in verifier says of a text, and which rule decided."""

from __future__ import annotations

import argparse

DESCRIPTION = """\
Score one response with a built-in verifier, by the very code that training and validation run, and say which rule
decided. The response is --response, --file, or standard input.

  argosy reward try --source openai/gsm8k --truth 3480 --response 'She saves $3,480. #### 3,480'
  argosy reward try --source lighteval/MATH --truth '\\frac{1}{3}' < response.txt
  argosy reward try --source openai/gsm8k --truth 5 --response 5 --extra '{"reward_kwargs": {"method": "strict"}}'

Exit codes: 0 it was scored, whatever the score; 1 the verifier failed or abstained; 2 wrong arguments.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `argosy reward try`."""
    parser = commands.add_parser(
        "try",
        help="score a text from the command line",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--source", metavar="NAME", help="data source, as in the dataset; --list shows them")
    parser.add_argument("--truth", metavar="TEXT", help="the ground truth, a text")
    parser.add_argument("--truth-json", metavar="JSON", help="the ground truth, if it is no text: a list, a mapping")
    response = parser.add_mutually_exclusive_group()
    response.add_argument("--response", metavar="TEXT", help="the response")
    response.add_argument("--file", metavar="FILE", help="a file with the response; - is standard input")
    parser.add_argument("--extra", metavar="JSON", default="{}", help="extra_info of the row, a JSON object")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--list", action="store_true", help="show all data sources and their verifiers, and end")
    parser.set_defaults(func=run_try)


def run_try(args: argparse.Namespace) -> int:
    """`argosy reward try`."""
    # The verifiers are pure functions of the reward package: no service is started.
    from argosy.reward.verifiers.command import Request, list_sources, try_one
    from argosy.types.errors import InvalidInputError

    if args.list:
        return list_sources(as_json=args.json)
    if args.source is None:
        raise InvalidInputError("give --source NAME; --list shows the names")
    if (args.truth is None) == (args.truth_json is None):
        raise InvalidInputError("give one of --truth TEXT and --truth-json JSON")
    return try_one(
        Request(
            source=args.source,
            truth=args.truth,
            truth_json=args.truth_json,
            response=args.response,
            file=args.file,
            extra_json=args.extra,
        ),
        as_json=args.json,
    )
