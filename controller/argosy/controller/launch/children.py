"""The service processes of a run on one machine: how each is started, and with which configuration."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from argosy.config import Config
from argosy.controller.launch.interpreters import program_of
from argosy.controller.launch.plan import PlannedMember, module_of
from argosy.controller.launch.process import ChildSpec
from argosy.controller.roster import keeps_servers
from argosy.membership.etcd_client import EtcdOptions

# Children of a higher stage are drained first: who asks others goes before who answers; etcd (0) is the last.
_STAGES: Mapping[str, int] = {"rollout": 2, "reward": 1, "reference": 1, "critic": 1, "trainer": 1}
_SETTINGS, _AGAIN = "services.yaml", "services-restart.yaml"


class ServiceChildren:
    """What the launcher starts.

    Args:
        cfg: Of the run.
        run_dir: Its folder.
        modules: Role → module that serves it, where that isn't `module_of(role)`.
    """

    def __init__(self, cfg: Config, run_dir: Path, modules: Mapping[str, str]) -> None:
        self._cfg = cfg
        self._run_dir = run_dir
        self._modules = modules
        self.incarnations: dict[str, str] = {}
        """Of the present life of each, by member id."""

    def save_settings(self, options: EtcdOptions) -> None:
        """Write the configuration that the services read."""
        seen = for_services(self._cfg, options, self._run_dir)
        seen.save(self._run_dir / _SETTINGS)
        if (ranks := self._cfg.argosy.restart.ranks) is not None:
            seen.with_values({"trainer.n_gpus_per_node": ranks}).save(self._run_dir / _AGAIN)

    def spec(self, member: PlannedMember, *, again: bool = False) -> ChildSpec:
        """A new life of a member. `again`: in place of one that died."""
        cfg = self._cfg
        ranked = again and cfg.argosy.restart.ranks is not None and member.role in ("trainer", "critic")
        incarnation = self.incarnations[member.member_id] = secrets.token_hex(8)
        python = program_of(member.python) if member.python else sys.executable
        argv = [
            python, "-m", self._modules.get(member.role, module_of(member.role)),
            "--config", str(self._run_dir / (_AGAIN if ranked else _SETTINGS)),
            "--member", member.member_id, "--incarnation", incarnation,
        ]  # fmt: skip
        if member.role == "rollout" and cfg.argosy.pools:
            argv += ["--pool", member.pool]
        if member.role == "reward" and cfg.argosy.reward.services:
            argv += ["--name", member.pool]
        return ChildSpec(
            member.member_id,
            argv,
            stage=_STAGES.get(member.role, 1),
            env=member.env,
            group=group_of(member),
            is_awaited=member.role == "rollout" and not keeps_servers(cfg),
        )


def group_of(member: PlannedMember) -> str:
    """Those that can stand in for each other, as the supervisor names them; "": nobody can."""
    if member.role in ("rollout", "reference"):
        return member.role
    return f"{member.role} {member.pool}" if member.role == "reward" else ""


def for_services(cfg: Config, options: EtcdOptions, run_dir: Path) -> Config:
    """The configuration that the services get: with the etcd that was found or started, and the run folder.

    Environment variables are left out: the processes have them, and a file is no place for secrets.
    """
    bare: dict[str, dict[str, str]] = {
        f"argosy.services.{field.name}.env": {} for field in dataclasses.fields(cfg.argosy.services)
    }
    pools = {name: {**values, "env": {}} for name, values in cfg.argosy.pools.items()}
    rewards = {name: {**values, "env": {}} for name, values in cfg.argosy.reward.services.items()}
    cfg = cfg.with_values({**bare, "argosy.pools": pools, "argosy.reward.services": rewards})
    membership = dataclasses.replace(cfg.argosy.membership, endpoints=options.endpoints, prefix=options.prefix)
    return dataclasses.replace(
        cfg,
        argosy=dataclasses.replace(cfg.argosy, membership=membership),
        trainer=dataclasses.replace(cfg.trainer, default_local_dir=str(run_dir)),
    )


def folder_tag(run_dir: Path) -> str:
    """Tells the local fleets of different run folders apart on a shared etcd; the same after a restart."""
    return hashlib.sha256(f"{socket.gethostname()}:{os.fspath(run_dir)}".encode()).hexdigest()[:12]
