"""Hosts as network namespaces: a bridge of this machine's kernel, and a pair of virtual Ethernet devices for each host.

    this machine (NEAR, ETCD) ── bridge ── port ═ eth0 (one address for each Host)

A partition blocks the port: frames vanish in both directions, nobody is told, links stay up. One address alone is lost
by a wrong neighbour entry. A link is made slow, late and lossy by a token bucket with little room: what doesn't fit is
dropped. All of it is the kernel's doing. `netem` (random loss, fixed delay) is used where the kernel has it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_NOBODY = "02:00:00:00:00:fe"
"""A hardware address that no device here has."""
_BLOCKED, _FORWARDING = "0", "3"
"""States of a bridge's port."""


def why_not() -> str:
    """Why this machine can't have such hosts; empty if it can."""
    missing = [tool for tool in ("ip", "bridge", "tc") if shutil.which(tool) is None]
    if missing:
        return f"there is no {', '.join(missing)} (iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"argosy-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"the kernel refuses network namespaces: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


@dataclass(frozen=True)
class Host:
    """A namespace."""

    name: str
    address: str
    port: str
    """Its device at the bridge."""

    def command(self, words: Sequence[str]) -> list[str]:
        """What runs a program there; its process id is the program's."""
        return ["ip", "netns", "exec", self.name, *words]

    def cut(self) -> None:
        """Lose everything from and to it."""
        _run("bridge", "link", "set", "dev", self.port, "state", _BLOCKED)

    def join(self) -> None:
        """End `cut`."""
        _run("bridge", "link", "set", "dev", self.port, "state", _FORWARDING)

    def lose(self, address: str) -> None:
        """Lose what it sends to one address."""
        _run(*self.command(["ip", "neigh", "replace", address, "lladdr", _NOBODY, "nud", "permanent", "dev", "eth0"]))

    def find(self, address: str) -> None:
        """End `lose`."""
        _run(*self.command(["ip", "neigh", "del", address, "dev", "eth0"]))

    def squeeze(self, rate: str, burst: str = "16kb", latency: str = "100ms") -> None:
        """Let through so much in both directions; what would wait for longer is dropped."""
        shape = ["root", "tbf", "rate", rate, "burst", burst, "latency", latency]
        _run("tc", "qdisc", "replace", "dev", self.port, *shape)
        _run(*self.command(["tc", "qdisc", "replace", "dev", "eth0", *shape]))

    def disturb(self, how: Sequence[str] = ("delay", "100ms", "20ms", "loss", "1%")) -> bool:
        """Delay and random loss by netem; False where the kernel has none."""
        for prefix in ([], self.command([])):
            device = "eth0" if prefix else self.port
            words = [*prefix, "tc", "qdisc", "replace", "dev", device, "root", "netem", *how]
            if subprocess.run(words, capture_output=True, check=False).returncode != 0:
                return False
        return True

    def dropped(self) -> int:
        """Packets that the shaping of its link has dropped so far, towards it."""
        words = _run("tc", "-s", "qdisc", "show", "dev", self.port).replace(",", "").split()
        return int(words[words.index("(dropped") + 1]) if "(dropped" in words else 0

    def clear(self) -> None:
        """End `squeeze` and `disturb`."""
        subprocess.run(["tc", "qdisc", "del", "dev", self.port, "root"], capture_output=True, check=False)
        there = self.command(["tc", "qdisc", "del", "dev", "eth0", "root"])
        subprocess.run(there, capture_output=True, check=False)


class Network:
    """A bridge with hosts, until the context ends. Programs that still run in a host then must be ended before."""

    def __init__(self, *names: str) -> None:
        number = os.getpid() % 250
        self._bridge = f"agy{os.getpid()}"
        self.near, self.etcd = f"10.88.{number}.1", f"10.88.{number}.2"
        """Two addresses of this machine, so that one can be lost without the other."""
        self.hosts = {
            name: Host(f"argosy-{os.getpid()}-{name}", f"10.88.{number}.{10 + place}", f"agy{os.getpid()}p{place}")
            for place, name in enumerate(names)
        }

    def __enter__(self) -> Self:
        try:
            _run("ip", "link", "add", self._bridge, "type", "bridge")
            for address in (self.near, self.etcd):
                _run("ip", "addr", "add", f"{address}/24", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
            for host in self.hosts.values():
                self._add(host)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _add(self, host: Host) -> None:
        _run("ip", "netns", "add", host.name)
        peer = f"{host.port}e"
        _run("ip", "link", "add", host.port, "type", "veth", "peer", "name", peer)
        _run("ip", "link", "set", peer, "netns", host.name)
        _run("ip", "link", "set", host.port, "master", self._bridge)
        _run("ip", "link", "set", host.port, "up")
        _run(*host.command(["ip", "link", "set", peer, "name", "eth0"]))
        _run(*host.command(["ip", "addr", "add", f"{host.address}/24", "dev", "eth0"]))
        for device in ("lo", "eth0"):
            _run(*host.command(["ip", "link", "set", device, "up"]))

    def _remove(self) -> None:
        for words in (
            *(["ip", "netns", "del", host.name] for host in self.hosts.values()),
            *(["ip", "link", "del", host.port] for host in self.hosts.values()),
            ["ip", "link", "del", self._bridge],
        ):
            subprocess.run(words, capture_output=True, check=False)  # whatever was never made, or has gone with another


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"
    return done.stdout
