"""`argosy serve reward --function path.py:name`: one reward function as a server of its own."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that go with --function."""
    group = parser.add_argument_group("one reward function, without configuration and without etcd (role reward)")
    group.add_argument("--function", metavar="FILE.PY:NAME", help="serve this function (docs/rewards-languages.md)")
    group.add_argument("--address", metavar="HOST:PORT", help="where to listen (default 127.0.0.1:0, a free port)")
    group.add_argument("--workers", type=int, metavar="N", help="worker processes (default 2)")
    group.add_argument("--timeout", type=float, metavar="SECONDS", help="for one call of the function (default 10)")
    group.add_argument("--allow-remote", action="store_true", help="let it listen beyond loopback, for anybody there")


def serve_function(args: argparse.Namespace) -> int:
    """`argosy serve reward --function`. Raises InvalidInputError for options that don't go together."""
    from argosy.reward.standalone import StandaloneOptions
    from argosy.reward.standalone import serve_function as serve
    from argosy.types.errors import InvalidInputError

    names = ("overrides", "config", "run", "member", "host", "port", "advertise", "pool", "name", "incarnation")
    given = [name for name in names if getattr(args, name, None)]
    if args.role != "reward" or given:
        what = f"role {args.role}" if args.role != "reward" else " and ".join(given)
        raise InvalidInputError(
            f"--function serves one reward function by itself; {what} doesn't go with it, "
            "only --address HOST:PORT, --workers, --timeout and --allow-remote do"
        )
    chosen = {"address": args.address, "worker_count": args.workers, "timeout_s": args.timeout}
    options = {name: value for name, value in chosen.items() if value is not None}
    return serve(StandaloneOptions(args.function, allow_remote=args.allow_remote, **options))


def refuse_alone(args: argparse.Namespace) -> None:
    """Options of --function without it are a mistake: InvalidInputError."""
    from argosy.types.errors import InvalidInputError

    names = ("address", "workers", "timeout", "allow_remote")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name)]
    if given:
        raise InvalidInputError(f"{', '.join(given)} goes with --function only; for a member of a fleet see --help")
