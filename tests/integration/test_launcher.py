"""The launcher as a process of its own, with real etcd and real service processes (cases H6, H8)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

PROGRAMS = Path(__file__).parent / "launcher_programs"
ENDS_WITHIN_S = 15.0


class Launched:
    """One launcher process, and everything that descends from it (found by a mark in its environment)."""

    def __init__(self, run_dir: Path, behaviour: dict[str, str] | None = None, *, grace_s: float = 3.0) -> None:
        self.run_dir = run_dir
        self.mark = uuid.uuid4().hex
        self.output = run_dir.parent / f"output-{self.mark}.txt"
        environment = {
            **os.environ,
            "PYTHONPATH": str(PROGRAMS),
            "OMP_NUM_THREADS": "1",
            "LAUNCHED_BY": self.mark,
            "FAKE_BEHAVIOUR": json.dumps(behaviour or {}),
        }
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "launcher.py"), str(run_dir), str(grace_s)],
                env=environment, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def wait_ready(self) -> dict[str, list[str]]:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for line in self.output.read_text().splitlines():
                if line.startswith("READY "):
                    ready: dict[str, list[str]] = json.loads(line.removeprefix("READY "))
                    return ready
            assert self.process.poll() is None, self.output.read_text()
            time.sleep(0.05)
        raise AssertionError(self.output.read_text())

    def wait_started(self, count: int) -> None:
        """Until so many processes descend from it: a moment in the middle of its start-up."""
        deadline = time.monotonic() + 30
        while len(self.descendants()) < count and time.monotonic() < deadline:
            time.sleep(0.01)

    def descendants(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                is_live_other = process.pid != self.process.pid and process.status() != psutil.STATUS_ZOMBIE
                if is_live_other and process.environ().get("LAUNCHED_BY") == self.mark:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def service(self, member_id: str) -> psutil.Process:
        if member_id == "etcd":
            return next(process for process in self.descendants() if process.name() == "etcd")
        return next(process for process in self.descendants() if member_id in process.cmdline())

    def wait(self) -> int:
        return self.process.wait(ENDS_WITHIN_S)

    def assert_nothing_left(self) -> None:
        deadline = time.monotonic() + 5
        while (left := self.descendants()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left, [process.cmdline() for process in left]


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[list[Launched]]:
    """Launchers of the test; whatever goes wrong, nothing of them outlives it."""
    started: list[Launched] = []
    yield started
    for launch in started:
        launch.process.kill()
        for process in launch.descendants():
            process.kill()


def start(
    launched: list[Launched], run_dir: Path, behaviour: dict[str, str] | None = None, *, grace_s: float = 3.0
) -> Launched:
    launched.append(Launched(run_dir, behaviour, grace_s=grace_s))
    return launched[-1]


def test_a_fleet_starts_and_sigterm_drains_it_in_order(tmp_path: Path, launched: list[Launched]) -> None:
    run_dir = tmp_path / "run"
    launch = start(launched, run_dir)
    ready = launch.wait_ready()
    assert {name: state for name, (_, state) in ready.items()} == {
        "trainer-0": "ready", "reward-0": "ready", "rollout-0": "stale",
    }  # fmt: skip
    assert len({address for address, _ in ready.values()}) == 3
    assert len(launch.descendants()) >= 3 + 3 + 2  # services, their workers, etcd and the watchdog
    launch.process.send_signal(signal.SIGTERM)
    assert launch.wait() == 128 + signal.SIGTERM
    launch.assert_nothing_left()
    assert "stopped in order" in launch.output.read_text()
    for member in ready:
        log = (run_dir / "logs" / f"{member}.log").read_text()
        assert "closing the core" in log
        assert "Traceback" not in log
    assert (run_dir / "logs" / "etcd.log").exists()


@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_h6_one_signal_ends_all_and_the_next_start_works(
    tmp_path: Path, launched: list[Launched], number: signal.Signals
) -> None:
    for _ in range(2):
        launch = start(launched, tmp_path / "run")
        launch.wait_ready()
        launch.process.send_signal(number)
        assert launch.wait() == 128 + number
        launch.assert_nothing_left()


@pytest.mark.chaos
def test_h6_a_second_ctrl_c_kills_at_once(tmp_path: Path, launched: list[Launched]) -> None:
    launch = start(launched, tmp_path / "run", {"rollout-0": "hang"}, grace_s=30.0)
    launch.wait_ready()
    began = time.monotonic()
    launch.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    launch.process.send_signal(signal.SIGINT)
    assert launch.wait() == 130
    assert time.monotonic() - began < 15  # the grace would be 30 s
    launch.assert_nothing_left()


@pytest.mark.chaos
def test_h6_a_hanging_service_costs_its_grace_only(tmp_path: Path, launched: list[Launched]) -> None:
    launch = start(launched, tmp_path / "run", {"rollout-0": "hang"})
    launch.wait_ready()
    launch.process.send_signal(signal.SIGINT)
    assert launch.wait() == 130
    launch.assert_nothing_left()


@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("process_count", [2, 4])
def test_h6_an_end_during_start_up_leaves_nothing(
    tmp_path: Path, launched: list[Launched], number: signal.Signals, process_count: int
) -> None:
    launch = start(launched, tmp_path / "run", {"trainer-0": "slow"})
    launch.wait_started(process_count)
    launch.process.send_signal(number)
    assert launch.wait() != 0
    launch.assert_nothing_left()


@pytest.mark.chaos
def test_h6_sigkill_of_the_launcher_leaves_nothing_and_the_next_start_works(
    tmp_path: Path, launched: list[Launched]
) -> None:
    for _ in range(3):
        launch = start(launched, tmp_path / "run")
        launch.wait_ready()
        launch.process.kill()
        launch.process.wait()
    for each in launched:
        each.assert_nothing_left()
    last = start(launched, tmp_path / "run")
    last.wait_ready()
    last.process.send_signal(signal.SIGTERM)
    assert last.wait() == 128 + signal.SIGTERM


@pytest.mark.chaos
@pytest.mark.parametrize("member", ["trainer-0", "reward-0", "rollout-0", "etcd"])
def test_h8_kill_of_any_child_ends_the_run_with_the_cause_last(
    tmp_path: Path, launched: list[Launched], member: str
) -> None:
    launch = start(launched, tmp_path / "run")
    launch.wait_ready()
    launch.service(member).kill()
    assert launch.wait() == 1
    launch.assert_nothing_left()
    shown = launch.output.read_text()
    cause = shown[shown.rindex(f"{member} died: killed by SIGKILL") :]
    assert "controller-0" not in cause  # no log line after it
    assert cause.strip() == (tmp_path / "run" / "logs" / "failure.txt").read_text().strip()


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("behaviour", "reason"), [("crash", "RuntimeError: no such model"), ("fail", "the engine thread is dead")]
)
def test_h8_a_service_that_crashes_by_itself_ends_the_run_with_its_traceback(
    tmp_path: Path, launched: list[Launched], behaviour: str, reason: str
) -> None:
    launch = start(launched, tmp_path / "run", {"reward-0": behaviour})
    assert launch.wait() == 1
    launch.assert_nothing_left()
    assert "reward-0 died: exit code 1" in launch.output.read_text()
    assert reason in launch.output.read_text().splitlines()[-1]


def test_two_runs_at_once_do_not_collide_and_a_folder_has_one_run(tmp_path: Path, launched: list[Launched]) -> None:
    first, second = start(launched, tmp_path / "a"), start(launched, tmp_path / "b")
    addresses = [address for launch in (first, second) for address, _ in launch.wait_ready().values()]
    assert len(set(addresses)) == 6
    intruder = start(launched, tmp_path / "a")
    assert intruder.wait() == 1
    assert "another run (process" in intruder.output.read_text()
    for launch in (first, second):
        launch.process.send_signal(signal.SIGTERM)
        assert launch.wait() == 128 + signal.SIGTERM
        launch.assert_nothing_left()
