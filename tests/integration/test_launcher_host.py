"""The service host as a process: how it starts, refuses, drains and ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from argosy.config import Config
from argosy.controller.launch.watchdog import TOKEN_VARIABLE, sweep
from argosy.membership import server
from argosy.membership.etcd import EtcdMembership
from argosy.membership.etcd_client import EtcdOptions
from argosy.rpc.host_options import check_host, check_member
from argosy.types.errors import ConfigError
from argosy.types.records import Member, MemberState

PROGRAMS = Path(__file__).parent / "launcher_programs"


@pytest.fixture(scope="module")
def etcd_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("etcd")
    name, ports = f"host-test-{os.getpid()}", server.free_ports()
    argv = server.command(server.find_binary(None), name=name, data_dir=folder / "data", ports=ports)
    with (folder / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        while not server.is_ours(ports.endpoint, name):
            assert process.poll() is None
            time.sleep(0.05)
        yield ports.endpoint
        process.terminate()


class Hosted:
    """One service process."""

    def __init__(self, config: Path, *options: str, member: str = "reward-0", behaviour: str = "") -> None:
        self.token = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "fake_service.py"), "--config", str(config), "--member", member, *options],
            env={**os.environ, "FAKE_BEHAVIOUR": json.dumps({member: behaviour}), TOKEN_VARIABLE: self.token},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.output: list[str] = []

    def until(self, text: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            if text in line:
                return line
        raise AssertionError("".join(self.output))

    def end(self) -> tuple[int, str]:
        rest, _ = self.process.communicate(timeout=20)
        return self.process.returncode, "".join(self.output) + rest


@pytest.fixture
def host(etcd_endpoint: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    values = {
        "argosy.membership.endpoints": [etcd_endpoint],
        "argosy.membership.prefix": f"/{request.node.name}",
        "argosy.membership.lease_ttl_s": 3,
        "argosy.stop_grace_s": 3.0,
        "argosy.run_id": "run",
        "trainer.default_local_dir": str(tmp_path / "run"),
    }
    Config().with_values(values).save(tmp_path / "config.yaml")
    hosted: list[Hosted] = []

    def start(*options: str, **kwargs: str) -> Hosted:
        hosted.append(Hosted(tmp_path / "config.yaml", *options, **kwargs))
        return hosted[-1]

    yield start
    for one in hosted:
        assert sweep(one.token) == []
        one.process.wait()
        if one.process.stdout is not None:
            one.process.stdout.close()


async def members_of(etcd_endpoint: str, request: pytest.FixtureRequest) -> tuple[Member, ...]:
    fleet = EtcdMembership(EtcdOptions((etcd_endpoint,), prefix=f"/{request.node.name}"))
    try:
        return await fleet.members()
    finally:
        await fleet.close()


def test_registers_its_real_port_and_deregisters_on_sigterm(
    host: Any, etcd_endpoint: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    service = host("--incarnation", "abc")
    line = service.until("ready at")
    [member] = asyncio.run(members_of(etcd_endpoint, request))
    assert (member.member_id, member.role, member.incarnation) == ("reward-0", "reward", "abc")
    assert member.state is MemberState.READY
    assert line.strip().endswith(member.address)
    assert not member.address.endswith(":0")
    assert member.capabilities["pid"] == str(service.process.pid)
    service.process.send_signal(signal.SIGTERM)
    code, output = service.end()
    assert code == 0, output
    assert "Traceback" not in output
    assert asyncio.run(members_of(etcd_endpoint, request)) == ()


def test_a_server_without_current_weights_is_stale(
    host: Any, etcd_endpoint: str, request: pytest.FixtureRequest
) -> None:
    service = host(member="rollout-0")
    service.until("ready at")
    [member] = asyncio.run(members_of(etcd_endpoint, request))
    assert member.state is MemberState.STALE
    assert member.engine == Config().actor_rollout_ref.rollout.name


def test_a_stop_while_the_model_loads_does_not_wait_for_it(
    host: Any, etcd_endpoint: str, request: pytest.FixtureRequest
) -> None:
    service = host(behaviour="slow")
    deadline = time.monotonic() + 15
    while not (members := asyncio.run(members_of(etcd_endpoint, request))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [member.state for member in members] == [MemberState.JOINING]
    began = time.monotonic()
    service.process.send_signal(signal.SIGTERM)
    code, output = service.end()
    assert code == 0, output
    assert time.monotonic() - began < 10  # loading takes 20 s
    assert asyncio.run(members_of(etcd_endpoint, request)) == ()


def test_h8_a_failed_build_prints_its_traceback_and_exits_1(host: Any) -> None:
    code, output = host(behaviour="crash").end()
    assert code == 1
    assert output.splitlines()[-1] == "RuntimeError: no such model"
    assert "Traceback" in output


def test_h8_a_dead_engine_ends_the_process(host: Any, etcd_endpoint: str, request: pytest.FixtureRequest) -> None:
    code, output = host(behaviour="fail").end()
    assert code == 1
    assert output.splitlines()[-1] == "RuntimeError: the engine thread is dead"
    assert asyncio.run(members_of(etcd_endpoint, request)) == ()


def test_a_second_process_with_the_same_id_replaces_the_first(host: Any) -> None:
    first = host()
    first.until("ready at")
    second = host()
    second.until("ready at")
    code, output = first.end()
    assert code == 1
    assert "another process has registered as reward-0" in output.splitlines()[-1]
    assert second.process.poll() is None


def test_h6_a_second_signal_ends_a_stuck_service_at_once(host: Any) -> None:
    service = host(behaviour="hang")
    service.until("ready at")
    service.process.send_signal(signal.SIGINT)
    service.until("closing the core")  # in which it blocks the event loop for ever
    service.process.send_signal(signal.SIGINT)
    assert service.end()[0] == 130


def test_a_taken_port_is_a_clear_error(host: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, output = host("--port", str(taken.getsockname()[1])).end()
    assert code == 1
    assert "the port is taken" in output.splitlines()[-1]
    assert "Traceback" not in output


def test_a_missing_configuration_is_exit_code_2(tmp_path: Path) -> None:
    service = Hosted(tmp_path / "nowhere.yaml")
    code, output = service.end()
    assert code == 2
    assert "nowhere.yaml" in output


@pytest.mark.parametrize("is_told_to_end", [False, True])
def test_f6_an_absent_etcd_is_a_clear_error_in_the_end(tmp_path: Path, is_told_to_end: bool) -> None:
    """It may be away for a while; a process that waits for it still ends when it is told to."""
    values = {
        "argosy.membership.endpoints": ["127.0.0.1:1"],
        "argosy.startup_timeout_s": 180 if is_told_to_end else 1,
        "trainer.default_local_dir": str(tmp_path / "run"),
    }
    Config().with_values(values).save(tmp_path / "config.yaml")
    service = Hosted(tmp_path / "config.yaml")
    service.until("can't register yet")
    if is_told_to_end:
        service.process.send_signal(signal.SIGTERM)
    code, output = service.end()
    assert code == (0 if is_told_to_end else 1), output
    assert "etcd at 127.0.0.1:1" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("host_name", ["127.0.0.1", "::1", "[::1]", "localhost", "127.1.2.3"])
def test_loopback_is_always_allowed(host_name: str) -> None:
    check_host(host_name, allow_remote=False)


@pytest.mark.parametrize("host_name", ["0.0.0.0", "::", "10.0.0.1", "gpu7"])
def test_other_addresses_must_be_asked_for(host_name: str) -> None:
    with pytest.raises(ConfigError, match="allow_remote_hosts"):
        check_host(host_name, allow_remote=False)
    check_host(host_name, allow_remote=True)


@pytest.mark.parametrize(
    "module", ["argosy.rollout", "argosy.reward", "argosy.reference", "argosy.trainer", "argosy.trainer.critic"]
)
def test_each_service_explains_itself_without_loading_torch(module: str) -> None:
    code = (
        "import runpy, sys; sys.argv = ['x', '--help']\n"
        f"try:\n    runpy.run_module('{module}', run_name='__main__')\n"
        "finally:\n    assert not {'torch', 'transformers', 'grpc'} & set(sys.modules), 'heavy imports'"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "SIGTERM" in ran.stdout
    assert f"python -m {module} " in ran.stdout


def test_thread_counts_reach_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from argosy.rpc.host_options import set_threads; set_threads(1)\n"
        "assert 'torch' not in sys.modules; import torch; print(torch.get_num_threads())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment, check=True
    )
    assert ran.stdout.strip() == "1"


@pytest.mark.parametrize("member", ["", "a b", "rollout/3", "-x", "x" * 129, "rollout-é"])
def test_ids_that_can_be_no_part_of_a_key_are_refused(member: str) -> None:
    check_member("rollout-fast.gpu_7-3")
    with pytest.raises(ConfigError, match="--member"):
        check_member(member)
