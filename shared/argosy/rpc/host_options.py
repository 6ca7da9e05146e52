"""Command line, thread counts and listening address of a service program."""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from argosy.types.errors import ConfigError

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_MEMBER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def parse(role: str, module: str, about: str, argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line of `python -m MODULE`, which serves the role."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=f"{about} Usually started by `argosy train` (one machine) or as "
        f"`argosy serve {role}` (a fleet); all settings come from the configuration file.",
        epilog="Stop it with SIGTERM: it finishes what runs, deregisters and exits 0. A second signal ends it at once.",
    )
    parser.add_argument("--config", type=Path, required=True, help="resolved configuration (services.yaml of a run)")
    parser.add_argument("--member", required=True, help=f"id of this member of the fleet, such as {role}-0")
    add_arguments(parser)
    return parser.parse_args(argv)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that `python -m argosy.<role>` and `argosy serve <role>` share."""
    parser.add_argument("--host", help="address to listen on (default: from the configuration, loopback)")
    parser.add_argument("--port", type=int, help="port to listen on; 0 takes a free one (default: from the config)")
    parser.add_argument("--advertise", help="host name that others reach this member by (default: the listening host)")
    parser.add_argument("--pool", help="of a rollout server: its pool, one of argosy.pools (default: the only one)")
    parser.add_argument("--name", help="of a reward server: its service, one of argosy.reward.services")
    parser.add_argument("--incarnation", default="", help="token of this life of the member (default: a random one)")


def check_member(member: str) -> None:
    """Refuse an id that can't be a part of a key in etcd, of a file's name and of what is typed. Raises ConfigError."""
    if not _MEMBER.fullmatch(member):
        raise ConfigError(
            f"--member: got {member!r}; wants up to 128 letters, digits, '.', '_' and '-', such as rollout-3"
        )


def set_threads(count: int) -> None:
    """Bound the threads of OpenMP, MKL and OpenBLAS, which read these variables once, when torch or numpy load.

    0 leaves what the user has set. Already imported libraries don't notice: call it first.
    """
    if count > 0:
        for name in _THREAD_VARIABLES:
            os.environ[name] = str(count)


def check_host(host: str, *, allow_remote: bool) -> None:
    """Refuse to listen beyond loopback unless that was asked for: calls are neither encrypted nor authenticated."""
    try:
        is_loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if not is_loopback and not allow_remote:
        raise ConfigError(
            f"listening on {host} would let other machines in, without encryption or passwords; on a network that you "
            "trust, allow it with argosy.allow_remote_hosts=true"
        )
