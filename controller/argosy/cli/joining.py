"""`argosy serve ROLE --run FOLDER`: what a server needs to join a run that is under way on this machine."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argosy.config import Config

JOINERS = ("rollout", "reward", "reference")
"""Roles of which a run may have more servers than it began with."""
SERVICES_FILE = "services.yaml"
"""In the run folder: the configuration that the launcher gives to services, with the etcd of this start."""
RUN_FILE = "config.yaml"
"""In the run folder: the configuration of the run."""
_CLAIM_S = 60
"""A name is kept for a server that is about to register under it; it does so before it loads anything."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--run",
        type=Path,
        metavar="FOLDER",
        help="join the run that is under way in this folder: its configuration and etcd are read from there, and the "
        "member's id is the next free one",
    )


def config_of_run(folder: Path, role: str, overrides: Sequence[str], files: Sequence[str]) -> Config:
    """The configuration of a run's services, with changes on top. Raises ConfigError where nobody can join."""
    from argosy.config import load, load_resolved
    from argosy.types.errors import ConfigError

    if role not in JOINERS:
        raise ConfigError(f"--run {folder}: a run has one {role}; servers that can join it are {', '.join(JOINERS)}")
    path = _file_of(folder)
    config = load(overrides, [path, *files]) if overrides or files else load_resolved(path)
    if role != "reward" and (config.argosy.deterministic or config.argosy.colocated):
        key = "argosy.deterministic" if config.argosy.deterministic else "argosy.colocated"
        raise ConfigError(f"--run {folder}: a run with {key}=true keeps the servers that it began with")
    return config


def _file_of(folder: Path) -> Path:
    """With the launcher's services: what it gives them. With argosy.placement=fleet: what the leader goes by."""
    from argosy.config import load_resolved
    from argosy.types.errors import ConfigError

    run_file = folder / RUN_FILE
    if run_file.is_file() and load_resolved(run_file).argosy.placement == "fleet":
        return run_file
    if not (folder / SERVICES_FILE).is_file():
        raise ConfigError(
            f"--run {folder}: there is no {SERVICES_FILE} in it: give the folder of a run of `argosy train` that is "
            "under way (trainer.default_local_dir)"
        )
    return folder / SERVICES_FILE


def free_name(config: Config, role: str, named: str | None) -> str:
    """The next free member id as the launcher counts: rollout-1, rollout-POOL-0, reward-NAME-2. It is claimed, so that
    two who join at one time get two.

    Raises ConfigError if the run's etcd isn't there any more.
    """
    import asyncio

    from argosy.membership.etcd import EtcdMembership
    from argosy.membership.etcd_client import EtcdOptions
    from argosy.types.errors import ConfigError, UnavailableError

    settings = config.argosy.membership

    async def claim() -> str:
        membership = EtcdMembership(EtcdOptions(tuple(settings.endpoints), settings.prefix, settings.lease_ttl_s))
        try:
            return await membership.claim_name(_names(config, role, named), ttl_s=_CLAIM_S)
        finally:
            await membership.close()

    try:
        return asyncio.run(claim())
    except UnavailableError as error:
        raise ConfigError(
            f"this run can't be joined: it is over, or its etcd is away and this can be tried again: {error}"
        ) from error


def _names(config: Config, role: str, named: str | None) -> Iterator[str]:
    """Without those of the run's own servers, which are started again under their names when they die."""
    from argosy.controller.launch.plan import plan_members, services_of

    own = {member.member_id for member in plan_members(config, services_of(config))}
    prefix = role if named is None else f"{role}-{named}"
    return (name for number in itertools.count() if (name := f"{prefix}-{number}") not in own)
