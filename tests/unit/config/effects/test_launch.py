"""`argosy.*` of processes, membership, traces and calls: what the launcher, the service host and the clients take."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from argosy.cli.serve import check
from argosy.cli.train import train
from argosy.config import Config, find_problems
from argosy.controller import entry_fleet, placement
from argosy.controller.control import RunControl
from argosy.controller.entry import _end_soon
from argosy.controller.launch import fleet as fleet_module
from argosy.controller.launch.fleet import LocalFleet
from argosy.controller.placement import open_placement, rpc_settings
from argosy.controller.serving import serve_control
from argosy.membership.etcd_client import EtcdOptions
from argosy.membership.memory import MemoryMembership
from argosy.rpc import host as host_module
from argosy.rpc.clients.controller import ControllerClient
from argosy.rpc.host import Service
from argosy.rpc.retry import retry
from argosy.telemetry import traces
from argosy.telemetry.span_file import SpanFile
from argosy.types.errors import ConfigError, UnavailableError
from argosy.types.records import RewardCapabilities
from unit.config.effects.recorded import run_recorded
from unit.config.effects.support import problems

Patch = pytest.MonkeyPatch
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Stop(Exception):
    """Ends what is started, once the test has seen enough."""


@pytest.fixture
def _logging_stays() -> Iterator[None]:
    """A service host makes the process's logging its own."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def host(_logging_stays: None, monkeypatch: Patch) -> Any:
    """host(role, config): what a service process makes of it before it listens."""
    for name in THREADS:
        monkeypatch.setenv(name, "1")

    def begin(role: str, config: Config, host: str | None = None) -> tuple[str, int]:
        seen: list[tuple[str, int]] = []

        class Process:
            def __init__(self, service: Service, config: Config, _: object, __: object, host: str, port: int) -> None:
                seen.append((host, port))

            async def run(self) -> int:
                with traces.span("work"):
                    return 0

        monkeypatch.setattr(host_module, "_Process", Process)
        service = Service(role, "", build=lambda _: None, add_to_server=lambda *_: [])
        arguments = argparse.Namespace(member=f"{role}-0", host=host, port=None)
        assert host_module.run(service, config, arguments) == 0
        return seen[0]

    return begin


@pytest.mark.parametrize(
    "key",
    ["argosy.rollout.host", "argosy.trainer.host", "argosy.critic.host", "argosy.reference.host", "argosy.reward.host"],
)
def test_host(job: Config, host: Any, key: str) -> None:
    role = key.split(".")[1]
    assert host(role, job)[0] == "127.0.0.1"
    assert host(role, job.with_values({key: "::1"}))[0] == "::1"


@pytest.mark.usefixtures("_logging_stays")
def test_the_core_knows_where_its_service_really_listens(job: Config, monkeypatch: Patch) -> None:
    """--host counts for what the core opens itself: a collective's store that listens on loopback reaches nobody."""
    built: list[Config] = []

    class Process:
        def __init__(self, service: Service, config: Config, *rest: object) -> None:
            built.append(config)

        async def run(self) -> int:
            return 0

    monkeypatch.setattr(host_module, "_Process", Process)
    service = Service("trainer", "", build=lambda _: None, add_to_server=lambda *_: [])
    arguments = argparse.Namespace(member="trainer-0", host="::1", port=None)
    assert host_module.run(service, job, arguments) == 0
    assert built[0].argosy.trainer.host == "::1"


@pytest.mark.parametrize(
    "key",
    ["argosy.rollout.port", "argosy.trainer.port", "argosy.critic.port", "argosy.reference.port", "argosy.reward.port"],
)
def test_port(job: Config, host: Any, key: str) -> None:
    role = key.split(".")[1]
    assert host(role, job)[1] == 0
    assert host(role, job.with_values({key: 4711}))[1] == 4711


async def test_controller_address(job: Config) -> None:
    async def reached_at(values: dict[str, Any]) -> str:
        config, tracing = (
            job.with_values(values),
            traces.setup_from_settings(
                "controller-0", run_id="run", run_dir=job.run_folder, enabled=False, otlp_endpoint=None
            ),
        )
        job.run_folder.mkdir(exist_ok=True)
        membership = MemoryMembership()
        async with serve_control(RunControl("run", 1), membership, job.run_folder, config, tracing) as address:
            [member] = await membership.members("controller")
            client = ControllerClient(address)
            assert (await client.get_run()).run_id == "run"
            await client.close()
        assert member.address == address
        return address

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert (await reached_at({})).startswith("127.0.0.1:")
    assert await reached_at({"argosy.controller.port": port}) == f"127.0.0.1:{port}"
    everywhere = {"argosy.controller.host": "0.0.0.0", "argosy.allow_remote_hosts": True}
    assert (await reached_at(everywhere)).startswith(f"{socket.gethostname()}:")


@pytest.mark.parametrize("key", [
    "argosy.rollout.threads", "argosy.trainer.threads", "argosy.critic.threads", "argosy.reference.threads",
])  # fmt: skip
def test_threads_of_the_process(job: Config, host: Any, key: str) -> None:
    """Set before numpy and torch are loaded, which read the variables once."""
    host(key.split(".")[1], job.with_values({key: 3}))
    assert [os.environ[name] for name in THREADS] == ["3"] * 3


def test_allow_remote_hosts(job: Config, host: Any) -> None:
    remote = job.with_values({"argosy.reward.host": "0.0.0.0"})
    changed = remote.with_values({"argosy.allow_remote_hosts": True})
    assert "argosy.reward.host: got '0.0.0.0'" in problems(remote)
    assert problems(changed) == ""
    with pytest.raises(ConfigError, match=r"listening on 0\.0\.0\.0"):
        host("reward", remote)
    assert host("reward", changed)[0] == "0.0.0.0"


def test_telemetry_enabled(job: Config, host: Any) -> None:
    file = job.run_folder / "traces/reward-0.jsonl"
    host("reward", job.with_values({"argosy.telemetry.enabled": False}))
    assert not file.exists()
    host("reward", job.with_values({"argosy.telemetry.enabled": True}))
    assert '"work"' in file.read_text()


def test_otlp_endpoint(job: Config, host: Any, tmp_path: Path, monkeypatch: Patch) -> None:
    sent: list[str] = []

    def exporter(endpoint: str) -> SpanFile:
        sent.append(endpoint)
        return SpanFile(tmp_path / "collector.jsonl")

    monkeypatch.setattr(traces, "_otlp", exporter)
    host("reward", job)
    assert sent == []
    host("reward", job.with_values({"argosy.telemetry.otlp_endpoint": "http://localhost:4317"}))
    assert sent == ["http://localhost:4317"]
    assert '"work"' in (tmp_path / "collector.jsonl").read_text()


class SilentReward:
    """A reward core that scores nothing; the placement asks it what it can do."""

    def __init__(self, config: Config) -> None:
        pass

    async def capabilities(self) -> RewardCapabilities:
        return RewardCapabilities(("*",))


class Idle:
    """Stands for a core that nothing but its start is asked of."""

    def __init__(self, config: Config, **_: object) -> None:
        self.config = config

    async def start(self) -> None:
        pass


async def test_placement(job: Config, monkeypatch: Patch) -> None:
    """Cores in this process, or a fleet of processes."""
    started: list[str] = []

    class Fleet:
        def __init__(self, *_: object) -> None:
            started.append("fleet")
            raise Stop

    monkeypatch.setattr(placement, "LocalFleet", Fleet)
    builders = {**dict.fromkeys(placement.BUILDERS, f"{__name__}:Idle"), "reward": f"{__name__}:SilentReward"}
    monkeypatch.setattr(placement, "BUILDERS", builders)
    async with open_placement(job.with_values({"argosy.placement": "inprocess"}), job.run_folder) as opened:
        assert isinstance(opened.membership, MemoryMembership)
        assert list(opened.services.rollouts) == ["rollout-0"]
    assert started == []
    with pytest.raises(Stop):
        async with open_placement(job.with_values({"argosy.placement": "local"}), job.run_folder):
            pass
    assert started == ["fleet"]


def test_placement_fleet(job: Config, monkeypatch: Patch, tmp_path: Path) -> None:
    """Nothing is started; what all have in common must be named."""
    fleet = job.with_values({"argosy.placement": "fleet"})
    assert "argosy.run_id: is null with argosy.placement=fleet" in problems(fleet)
    assert "argosy.membership.endpoints: is empty with argosy.placement=fleet" in problems(fleet)
    whole = fleet.with_values({"argosy.run_id": "run", "argosy.membership.endpoints": ["127.0.0.1:1"]})
    assert problems(whole) == ""
    assert problems(whole.with_values({"argosy.record.enable": True})) == ""
    key = "argosy.services.trainer.python"
    assert f"{key}: " in problems(whole.with_values({key: "/usr/bin/python3"}))

    def stands(config: Config, _: object) -> None:
        raise Stop

    monkeypatch.setattr(entry_fleet, "run_in_fleet", stands)
    whole.save(tmp_path / "run.yaml")
    arguments = argparse.Namespace(overrides=[], config=[str(tmp_path / "run.yaml")], json=False, quiet_config=True)
    with pytest.raises(Stop):
        train(arguments)


async def etcd(config: Config, monkeypatch: Patch) -> tuple[EtcdOptions, str | None]:
    """How the fleet reaches its etcd, and the binary if it had to start one."""
    started: list[str | None] = []

    async def start(_: object, binary: str | None, *__: object, timeout_s: float) -> str:
        started.append(binary)
        return "127.0.0.1:1"

    monkeypatch.setattr(fleet_module, "start_etcd", start)
    supervisor: Any = None
    options = await LocalFleet(config, config.run_folder)._find_etcd(supervisor, time.monotonic() + 5)
    return options, started[0] if started else "not started"


async def test_endpoints(job: Config, monkeypatch: Patch) -> None:
    changed = job.with_values({"argosy.membership.endpoints": ["etcd-0:2379", "etcd-1:2379"]})
    options, started = await etcd(changed, monkeypatch)
    assert (options.endpoints, started) == (("etcd-0:2379", "etcd-1:2379"), "not started")
    options, started = await etcd(job, monkeypatch)
    assert (options.endpoints, started) == (("127.0.0.1:1",), None)
    with pytest.raises(ConfigError, match=r"argosy\.membership\.endpoints is empty"):
        check(job)
    check(changed)
    assert (await process(changed, monkeypatch))[1].endpoints == ("etcd-0:2379", "etcd-1:2379")


async def test_etcd_binary(job: Config, tmp_path: Path, monkeypatch: Patch) -> None:
    changed = job.with_values({"argosy.membership.etcd_binary": str(tmp_path / "etcd")})
    assert (await etcd(changed, monkeypatch))[1] == str(tmp_path / "etcd")
    assert any("argosy.membership.etcd_binary: no such file" in problem for problem in find_problems(changed))


async def process(config: Config, monkeypatch: Patch) -> tuple[int, EtcdOptions]:
    """A service process up to its registration: the limit of its server's messages, and how it reaches etcd."""
    from argosy.membership import etcd as etcd_module
    from argosy.rpc.server import RpcServer

    limits: list[int] = []
    found: list[EtcdOptions] = []

    class Server:
        async def start(self) -> None:
            pass

    def listen(*_: object, options: Any, **__: object) -> Server:
        limits.append(options.max_message_bytes)
        return Server()

    def membership(options: EtcdOptions) -> None:
        found.append(options)
        raise Stop

    monkeypatch.setattr(RpcServer, "listen", listen)
    monkeypatch.setattr(etcd_module, "EtcdMembership", membership)
    monkeypatch.setattr(host_module._Process, "_stop_event", lambda _: asyncio.Event())
    endpoints = config.argosy.membership.endpoints or ("127.0.0.1:1",)  # as the launcher fills them in
    with pytest.raises(Stop):
        await made(config.with_values({"argosy.membership.endpoints": list(endpoints)})).run()
    return limits[0], found[0]


def made(config: Config) -> host_module._Process:
    service = Service("reward", "", build=lambda _: None, add_to_server=lambda *_: [])
    arguments = argparse.Namespace(member="reward-0", host=None, port=None)
    return host_module._Process(service, config, arguments, traces.Tracing(None), "127.0.0.1", 0)


async def test_lease_ttl(job: Config, monkeypatch: Patch) -> None:
    changed = job.with_values({"argosy.membership.lease_ttl_s": 33})
    assert (await etcd(changed, monkeypatch))[0].lease_ttl_s == 33
    assert (await process(changed, monkeypatch))[1].lease_ttl_s == 33


async def test_prefix(job: Config, monkeypatch: Patch) -> None:
    changed = job.with_values({"argosy.membership.prefix": "/mine"})
    assert (await etcd(changed, monkeypatch))[0].prefix == "/mine"
    assert (await process(changed, monkeypatch))[1].prefix == "/mine"
    shared = changed.with_values({"argosy.membership.endpoints": ["etcd-0:2379"]})
    assert (await etcd(shared, monkeypatch))[0].prefix.startswith("/mine/local-")


async def test_startup_timeout(job: Config, monkeypatch: Patch) -> None:
    """The start of etcd and the wait for the services share it."""
    left: list[float] = []

    async def start(*_: object, timeout_s: float) -> str:
        left.append(timeout_s)
        raise Stop

    monkeypatch.setattr(fleet_module, "start_etcd", start)
    fleet = LocalFleet(job.with_values({"argosy.startup_timeout_s": 7.0}), job.run_folder)
    supervisor: Any = None
    with pytest.raises(Stop):
        await fleet._start(supervisor)
    assert left == [pytest.approx(7.0, abs=0.5)]


async def test_stop_grace(job: Config, monkeypatch: Patch) -> None:
    """The launcher kills after it; a service ends its running calls within a part of it."""
    graces: list[float] = []

    class Supervisor:
        def __init__(self, _: Path, *, grace_s: float) -> None:
            graces.append(grace_s)
            raise Stop

    class Nothing:
        async def stop(self, grace_s: float) -> None:
            graces.append(grace_s)

        async def close(self) -> None:
            pass

    monkeypatch.setattr(fleet_module, "Supervisor", Supervisor)
    changed = job.with_values({"argosy.stop_grace_s": 20.0})
    fleet = LocalFleet(changed, job.run_folder)
    with pytest.raises(Stop):
        await fleet.__aenter__()
    await fleet.stop()
    nothing: Any = Nothing()
    await made(changed)._close(nothing, nothing)
    assert graces == [20.0, 12.0]


@pytest.mark.parametrize(("key", "limit_s"), [("argosy.stop_save_s", 0.3), ("argosy.stop_save_s", 0.0)])
async def test_stop_save(job: Config, key: str, limit_s: float) -> None:
    """A run that never gets its steps saved is cancelled after the limit; at 0 at once."""
    control = RunControl("run", 10)
    control.unsaved_steps = 3
    stuck: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    began = time.monotonic()
    await _end_soon(stuck, control, "SIGINT", job.with_values({key: limit_s}).argosy.stop_save_s)
    assert stuck.cancelled()
    assert control.interrupted
    assert limit_s <= time.monotonic() - began < limit_s + 5
    assert "argosy.stop_save_s" in problems(job.with_values({key: -1.0}))


async def tries(config: Config, monkeypatch: Patch) -> list[float]:
    """Longest waits between the tries of a call to a server that is not there."""
    waits: list[float] = []
    from argosy.rpc import retry as module

    class Longest:
        def uniform(self, _: float, high: float) -> float:
            waits.append(round(high, 4))
            return 0.0

    async def attempt(*_: float) -> None:
        raise UnavailableError("nobody there")

    monkeypatch.setattr(module, "_RANDOM", Longest())
    with pytest.raises(UnavailableError):
        await retry(attempt, deadline_s=5, policy=rpc_settings(config)[1])
    return waits


async def test_retry_attempts(job: Config, monkeypatch: Patch) -> None:
    assert len(await tries(job, monkeypatch)) == 5
    assert len(await tries(job.with_values({"argosy.rpc.retry_attempts": 2}), monkeypatch)) == 2


async def test_retry_initial_backoff(job: Config, monkeypatch: Patch) -> None:
    changed = job.with_values({"argosy.rpc.retry_initial_backoff_s": 0.3})
    assert (await tries(job, monkeypatch))[:3] == [0.1, 0.2, 0.4]
    assert (await tries(changed, monkeypatch))[:3] == [0.3, 0.6, 1.2]


async def test_retry_max_backoff(job: Config, monkeypatch: Patch) -> None:
    changed = job.with_values({"argosy.rpc.retry_max_backoff_s": 0.2})
    assert await tries(changed, monkeypatch) == [0.1, 0.2, 0.2, 0.2, 0.2]


async def test_max_message_bytes(job: Config, monkeypatch: Patch) -> None:
    """Of the controller's connections and of the services' servers."""
    changed = job.with_values({"argosy.rpc.max_message_bytes": 5 * 2**20})
    limits = dict(rpc_settings(changed)[0].client())
    assert limits["grpc.max_send_message_length"] == limits["grpc.max_receive_message_length"] == 5 * 2**20
    assert (await process(changed, monkeypatch))[0] == 5 * 2**20


async def test_deadline(job: Config, monkeypatch: Patch) -> None:
    """Every mutation carries it."""
    recorded = await run_recorded(job.with_values({"argosy.rpc.deadline_s": 77.0}), monkeypatch)
    assert {mutation.deadline_s for mutation in recorded.mutations} == {77.0}
