"""One reward function as a server by itself, without configuration and etcd: `argosy serve reward --function`."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from argosy.reward.core import RewardOptions, RewardScorers
from argosy.reward.custom import CustomFunction
from argosy.reward.pool import PoolOptions
from argosy.reward.service import add_to_server
from argosy.rpc.host_options import check_host
from argosy.rpc.server import RpcServer
from argosy.types.errors import InvalidInputError

GRACE_S = 10.0
"""For calls that run when it is told to stop."""


@dataclass(frozen=True, slots=True)
class StandaloneOptions:
    """What to serve, and where."""

    function: str
    """"path.py:name"; without a name, compute_score."""
    address: str = "127.0.0.1:0"
    """host:port; port 0 is a free one."""
    worker_count: int = 2
    timeout_s: float = 10.0
    """Seconds for one call of the function."""
    allow_remote: bool = False
    """Whether it may listen beyond loopback."""


def serve_function(options: StandaloneOptions) -> int:
    """Serve until SIGTERM or SIGINT; prints "listening on host:port" once it can score. Raises ConfigError if the
    function can't be loaded, StateError if the port is taken."""
    function = parse_function(options.function)
    host, port = parse_address(options.address)
    check_host(host, allow_remote=options.allow_remote)
    pool = PoolOptions(worker_count=options.worker_count, timeout_s=options.timeout_s)
    scorers = RewardScorers(RewardOptions(pool, function))
    try:
        asyncio.run(_serve(scorers, function, host, port))
    finally:
        scorers.shutdown()
    return 0


def parse_function(text: str) -> CustomFunction:
    """Read "path.py:name".

    >>> parse_function("rewards/mine.py:score").name, parse_function("mine.py").name
    ('score', 'compute_score')
    """
    path, colon, name = text.rpartition(":")
    if not colon:
        path, name = text, "compute_score"
    if not path or not name.isidentifier():
        raise InvalidInputError(f"--function must be path.py:name, got {text!r}")
    return CustomFunction(str(Path(path).expanduser().absolute()), name)


def parse_address(text: str) -> tuple[str, int]:
    """Read "host:port"; an IPv6 host in brackets."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InvalidInputError(f"--address must be host:port, such as 127.0.0.1:4711; got {text!r}")
    return host.strip("[]"), int(port)


async def _serve(scorers: RewardScorers, function: CustomFunction, host: str, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = RpcServer.listen(host, port)
    await server.start()
    await server.serve(add_to_server(scorers, server.server, server.gate))
    print(f"listening on {server.address}", flush=True)
    print(f"serving {function.label}; check it with: argosy reward check {server.address}", file=sys.stderr, flush=True)
    await stop.wait()
    await server.stop(GRACE_S)
