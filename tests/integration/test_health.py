"""Case F10: health checks that lie. A real rollout process whose engine is loading, busy, stuck, and dead."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from argosy.config import Config
from argosy.membership import server
from argosy.modeling.tiny import save_tiny_model
from argosy.rpc.server import LIVENESS, NOT_SERVING, SERVING
from support.freezing import freeze

PROGRAM = Path(__file__).parent / "launcher_programs" / "faulty_rollout.py"
BOUND_S = 1.0
"""argosy.rollout.stall_timeout_s of the process; its host looks twice a second."""
SLACK_S = 2.0
"""For a machine with other work."""


@dataclass
class Checks:
    """Answers of health, with the longest time that one took."""

    process: subprocess.Popen[bytes]
    stub: Any
    longest_s: float = 0.0
    answers: list[int] = field(default_factory=list)

    def ask(self, name: str = "") -> int:
        began = time.monotonic()
        answer = self.stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5, wait_for_ready=True)
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        self.answers.append(answer.status)
        return int(answer.status)

    def until(self, status: int, timeout_s: float) -> float:
        """Seconds until readiness has the status; liveness is SERVING all the while."""
        began = time.monotonic()
        while self.ask() != status:
            assert self.ask(LIVENESS) == SERVING
            assert self.process.poll() is None
            assert time.monotonic() - began < timeout_s
            time.sleep(0.05)
        return time.monotonic() - began


@contextlib.contextmanager
def etcd(folder: Path) -> Iterator[str]:
    name, ports = f"health-test-{os.getpid()}", server.free_ports()
    argv = server.command(server.find_binary(None), name=name, data_dir=folder / "data", ports=ports)
    with (folder / "etcd.log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        while not server.is_ours(ports.endpoint, name):
            assert process.poll() is None
            time.sleep(0.05)
        yield ports.endpoint
        process.terminate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def rollout(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Checks]]:
    with etcd(tmp_path) as endpoint:
        config, port = tmp_path / "services.yaml", free_port()
        Config().with_values({
            "actor_rollout_ref.model.path": str(save_tiny_model(tmp_path / "tiny")),
            "argosy.membership.endpoints": [endpoint],
            "argosy.rollout.device": "cpu", "argosy.rollout.threads": 1, "argosy.rollout.slot_count": 4,
            "argosy.rollout.stall_timeout_s": BOUND_S, "argosy.stop_grace_s": 3.0,
            "trainer.default_local_dir": str(tmp_path / "run"),
        }).save(config)  # fmt: skip
        argv = [sys.executable, str(PROGRAM), "--config", str(config), "--member", "rollout-0", "--port", str(port)]
        with (
            (tmp_path / "log").open("wb") as log,
            subprocess.Popen(argv, stdout=log, stderr=log) as process,
            grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel,
        ):
            try:
                while process.poll() is None:  # until it listens
                    with contextlib.suppress(grpc.FutureTimeoutError):
                        grpc.channel_ready_future(channel).result(timeout=0.5)
                        break
                assert process.poll() is None, (tmp_path / "log").read_text()
                yield process, Checks(process, health_pb2_grpc.HealthStub(channel))
            finally:
                process.kill()


def test_f10_health_tells_the_truth(rollout: tuple[subprocess.Popen[bytes], Checks], tmp_path: Path) -> None:
    process, checks = rollout
    # While the model loads: alive, not ready.
    assert checks.until(SERVING, 60) > 1.0
    assert NOT_SERVING in checks.answers
    assert "is warm" in (tmp_path / "log").read_text()  # a real sample went through it before

    # Much computing in the engine, which also holds Python's lock: ready, and quick to say so.
    checks.longest_s, checks.answers = 0.0, []
    process.send_signal(signal.SIGUSR2)
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        checks.ask()
        time.sleep(0.02)
    assert set(checks.answers) == {SERVING}
    assert checks.longest_s < 1.0
    assert len(checks.answers) > 20

    # The engine's loop stands still: not ready within the bound, alive, and ready again when it moves.
    time.sleep(1.0)
    process.send_signal(signal.SIGUSR1)
    assert checks.until(NOT_SERVING, BOUND_S + SLACK_S) > BOUND_S / 2
    assert checks.ask(LIVENESS) == SERVING
    checks.until(SERVING, 3.0 + SLACK_S)

    # Its thread is dead: nobody is told that it serves, and the process ends with the reason.
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=10) == 1
    with pytest.raises(grpc.RpcError):
        checks.stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert "the rollout engine's thread has died" in (tmp_path / "log").read_text()


def test_f10_a_stuck_engine_does_not_outlast_a_stop(rollout: tuple[subprocess.Popen[bytes], Checks]) -> None:
    process, checks = rollout
    checks.until(SERVING, 60)
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.2)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=15) == 0
    assert time.monotonic() - began < 3.0 + SLACK_S  # argosy.stop_grace_s


def test_f10_a_blocked_event_loop_is_found_out_and_ends_the_server(
    rollout: tuple[subprocess.Popen[bytes], Checks], tmp_path: Path
) -> None:
    """Its lease and its connections are kept alive by other threads: nobody else would notice before a deadline."""
    process, checks = rollout
    checks.until(SERVING, 60)
    began = time.monotonic()
    process.send_signal(signal.SIGALRM)
    with pytest.raises(grpc.RpcError) as failed:  # a call that is under way: it doesn't wait for its deadline
        checks.stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert process.wait(timeout=BOUND_S + SLACK_S) == 1
    assert BOUND_S / 2 < time.monotonic() - began < BOUND_S + 2 * SLACK_S
    log = (tmp_path / "log").read_text()
    assert f"the event loop has not had a turn for {BOUND_S:g} s" in log
    assert "in block" in log, "where it stands"


def test_f10_a_stopped_process_is_not_a_blocked_loop(rollout: tuple[subprocess.Popen[bytes], Checks]) -> None:
    process, checks = rollout
    checks.until(SERVING, 60)
    freeze(process.pid)
    time.sleep(2 * BOUND_S)
    process.send_signal(signal.SIGCONT)
    time.sleep(BOUND_S)
    assert checks.ask() == SERVING
    assert process.poll() is None
