"""`argosy serve <role> key=value …`: one member of a fleet, as a program of its own."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from argosy.config import Config


@dataclass(frozen=True)
class Role:
    """A service that can be a member of a fleet."""

    what: str
    module: str
    """Has its SERVICE."""


ROLES = {
    "rollout": Role("generates completions", "argosy.rollout.__main__"),
    "reward": Role("scores completions", "argosy.reward.__main__"),
    "reference": Role("log-probs of the frozen reference model", "argosy.reference.__main__"),
    "trainer": Role("holds and updates the policy", "argosy.trainer.__main__"),
    "critic": Role("holds and updates the critic of PPO", "argosy.trainer.critic"),
}

_RUN_KEYS = ("algorithm.", "data.", "trainer.")

DESCRIPTION = """\
Run one service of a fleet. It registers itself in the etcd cluster that argosy.membership.endpoints names, and runs
until it gets SIGTERM: then it finishes what runs, deregisters and exits 0. Give every member the same configuration.

Example, on a machine for rollouts:
  argosy serve rollout --member rollout-3 --host 0.0.0.0 --advertise gpu7.cluster --config run.yaml \\
      argosy.membership.endpoints=[etcd-0:2379,etcd-1:2379,etcd-2:2379] argosy.allow_remote_hosts=true

With argosy.pools, --pool NAME says which pool a rollout server is in; `argosy train` waits for the servers of pools
with remote: true (docs/placement.md). So does --name NAME for a reward server and argosy.reward.services
(docs/rewards-services.md).

On one machine `argosy train` starts everything. A rollout, reward or reference server can join a run that is under way
there, and leave it again with SIGTERM (docs/fleet.md):
  argosy serve rollout --run runs/demo

A reward function alone, for a run's argosy.reward.services.NAME.address:
  argosy serve reward --function my_reward.py:score --address 127.0.0.1:4711
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    from argosy.cli import joining, serve_function
    from argosy.rpc.host_options import add_arguments

    parser = subparsers.add_parser(
        "serve",
        help="run one service of a fleet",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    roles = "; ".join(f"{name}: {role.what}" for name, role in ROLES.items())
    parser.add_argument("role", choices=list(ROLES), help=roles)
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
    parser.add_argument(
        "--member",
        help="id of this member, unique in the fleet (default: <role>-<host>-<random>; with --run the next number)",
    )
    joining.add_arguments(parser)
    add_arguments(parser)
    serve_function.add_arguments(parser)
    parser.set_defaults(func=serve)


def serve(args: argparse.Namespace) -> int:
    """Serve a function by itself, or be a member of a fleet."""
    from argosy.cli import serve_function

    if args.function is not None:
        return serve_function.serve_function(args)
    serve_function.refuse_alone(args)
    return serve_member(args)


def serve_member(args: argparse.Namespace) -> NoReturn:
    """Check the configuration, then run the service in this process."""
    import importlib
    import secrets
    import socket

    from argosy.cli import joining
    from argosy.config import load
    from argosy.rpc.host import leave, run

    named = args.pool or args.name
    if args.run is None:
        config = load(args.overrides, args.config)
    else:
        config = joining.config_of_run(args.run, args.role, args.overrides, args.config)
        args.port = args.port or 0  # the run's own servers have theirs
    check(config)
    use_environment(config, args.role, args.pool if args.role == "rollout" else args.name)
    if args.member is None and args.run is not None:
        args.member = joining.free_name(config, args.role, named)
    if args.member is None:
        pool = "" if named is None else f"{named}-"
        args.member = f"{args.role}-{pool}{socket.gethostname()}-{secrets.token_hex(3)}"
    # By name: the service's dependencies need not be installed where only the controller runs.
    service = importlib.import_module(ROLES[args.role].module).SERVICE
    leave(run(service, config, args))


def use_environment(config: Config, role: str, pool: str | None) -> None:
    """Set the service's environment variables, as the launcher does. Which interpreter it is, is decided already.

    `pool`: Of a rollout server its pool, of a reward server the name of its service.
    """
    import os
    import sys

    from argosy.config.load import print_warning

    seen = {"rollout": config.for_pool, "reward": config.for_reward}.get(role, lambda _: config)(pool)
    process = getattr(seen.argosy.services, role)
    os.environ.update(process.env)
    if process.python is not None and os.path.abspath(os.path.expanduser(process.python)) != sys.executable:
        print_warning(f"argosy.services.{role}.python={process.python} is for the launcher; this is {sys.executable}")


def check(config: Config) -> None:
    """Refuse what is wrong for any member. What a whole run needs (data, algorithm) is the controller's to check.

    Raises ConfigError.
    """
    from argosy.config import find_problems
    from argosy.types.errors import ConfigError

    problems = [line for line in find_problems(config, files=False) if not line.startswith(_RUN_KEYS)]
    if not config.argosy.membership.endpoints:
        problems.append(
            "argosy.membership.endpoints is empty: to join a run on this machine, give its folder with --run; a member "
            "of a fleet needs the etcd that the others use, as [host:port,…]; for everything on one machine use "
            "`argosy train`"
        )
    if problems:
        raise ConfigError("\n".join(problems))
