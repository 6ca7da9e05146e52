from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from argosy.controller.launch.errors import ChildDiedError, describe_exit
from argosy.controller.launch.lock import RunFolderLock
from argosy.controller.launch.logs import RotatingLog
from argosy.controller.launch.process import ChildSpec
from argosy.controller.launch.supervisor import FAILURE_FILE, Supervisor
from argosy.types.errors import StateError

IDLE = "import time; print('idle', flush=True); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('idle', flush=True); time.sleep(600)"
# A grandchild in a session of its own, which neither the group's kill nor PR_SET_PDEATHSIG reaches.
PARENT = (
    "import subprocess, sys, time; "
    f"child = subprocess.Popen([sys.executable, '-c', {IDLE!r}], start_new_session=True); "
    "print('child', child.pid, flush=True); time.sleep(600)"
)


def python(name: str, code: str, stage: int = 0) -> ChildSpec:
    return ChildSpec(name, [sys.executable, "-c", code], stage=stage)


def is_alive(pid: int) -> bool:
    """PID 1 may not reap: a zombie is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def whole_lines(path: Path) -> list[str]:
    """Without one whose end is still to come."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [line.rstrip("\n") for line in lines if line.endswith("\n")]


async def wait_for_line(path: Path, text: str) -> str:
    async with asyncio.timeout(10):
        while True:
            for line in whole_lines(path):
                if text in line:
                    return line
            await asyncio.sleep(0.02)


async def test_children_end_with_the_block_and_log_to_files(tmp_path: Path) -> None:
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        children = [await supervisor.start(python(f"idle-{number}", IDLE)) for number in range(2)]
        for child in children:
            await wait_for_line(child.log_path, "idle")
        assert not supervisor.failed.done()
    assert not supervisor.failed.done()
    assert [child.returncode for child in children] == [-signal.SIGTERM] * 2


@pytest.mark.parametrize(
    ("code", "returncode", "name"),
    [
        ("print('one'); raise SystemExit(3)", 3, ""),
        ("print('one')", 0, ""),
        ("import os; print('one', flush=True); os.kill(os.getpid(), 9)", -9, "SIGKILL"),
        ("import os; print('one', flush=True); os.abort()", -6, "SIGABRT"),
    ],
)
async def test_h8_a_dead_child_is_told_with_its_name_exit_and_last_lines(
    tmp_path: Path, code: str, returncode: int, name: str
) -> None:
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        await supervisor.start(python("idle", IDLE))
        await supervisor.start(python("reward-0", code))
        error = await asyncio.wait_for(asyncio.shield(supervisor.failed), 5)
    assert (error.member_id, error.returncode, error.signal_name) == ("reward-0", returncode, name)
    assert error.tail[-1] == "one"
    assert str(error).splitlines()[-1] == "  one"
    assert "reward-0 died" in str(error)
    assert (tmp_path / FAILURE_FILE).read_text().strip() == str(error).strip()


async def test_h8_only_the_last_twenty_lines_and_the_first_cause(tmp_path: Path) -> None:
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        await supervisor.start(python("a", "[print('line', n) for n in range(100)]; print('no newline', end='')"))
        error = await asyncio.wait_for(asyncio.shield(supervisor.failed), 5)
        await supervisor.start(python("b", "raise SystemExit(1)"))
        await asyncio.sleep(0.3)
        assert supervisor.failed.result() is error
    assert error.tail == (*(f"line {number}" for number in range(81, 100)), "no newline")


async def test_a_program_that_does_not_exist_is_a_death_with_a_reason(tmp_path: Path) -> None:
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        await supervisor.start(ChildSpec("etcd", ["/nonexistent/etcd"]))
        error = await asyncio.wait_for(asyncio.shield(supervisor.failed), 5)
    assert error.returncode == 127
    assert "can't run /nonexistent/etcd" in error.tail[-1]


async def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    async with Supervisor(tmp_path, grace_s=0.5) as supervisor:
        child = await supervisor.start(python("stubborn", STUBBORN))
        await wait_for_line(child.log_path, "idle")
        began = time.monotonic()
    assert child.returncode == -signal.SIGKILL
    assert 0.4 < time.monotonic() - began < 15  # a hang guard


async def test_higher_stages_are_drained_first(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "def stop(*_):\n"
        "    time.sleep(0.2); print('ended', time.monotonic(), flush=True); sys.exit(0)\n"
        "signal.signal(15, stop); print('idle', flush=True); time.sleep(600)"
    )
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        for name, stage in (("etcd", 0), ("reward", 1), ("trainer", 1), ("rollout", 2)):
            child = await supervisor.start(python(name, code, stage))
            await wait_for_line(child.log_path, "idle")
    ended = {child.spec.name: float(child.tail()[-1].split()[1]) for child in supervisor.children}
    assert sorted(ended, key=lambda name: ended[name])[0] == "rollout"
    assert sorted(ended, key=lambda name: ended[name])[-1] == "etcd"
    assert abs(ended["reward"] - ended["trainer"]) < 0.19  # a stage is drained together


async def test_h6_grandchildren_end_too_even_in_a_session_of_their_own(tmp_path: Path) -> None:
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        child = await supervisor.start(python("reward-0", PARENT))
        grandchild = int((await wait_for_line(child.log_path, "child")).split()[1])
        assert is_alive(grandchild)
    assert not is_alive(grandchild)


async def test_kill_ends_everything_at_once(tmp_path: Path) -> None:
    async with Supervisor(tmp_path, grace_s=60) as supervisor:
        stubborn = await supervisor.start(python("stubborn", STUBBORN))
        parent = await supervisor.start(python("parent", PARENT))
        grandchild = int((await wait_for_line(parent.log_path, "child")).split()[1])
        await wait_for_line(stubborn.log_path, "idle")
        began = time.monotonic()
        supervisor.kill()
        assert not is_alive(grandchild)
    assert time.monotonic() - began < 30  # half the grace
    assert not supervisor.failed.done()


async def test_stop_finishes_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, grace_s=0.5)
    await supervisor.__aenter__()
    child = await supervisor.start(python("stubborn", STUBBORN))
    await wait_for_line(child.log_path, "idle")
    stopping = asyncio.ensure_future(supervisor.stop())
    await asyncio.sleep(0.1)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert child.returncode == -signal.SIGKILL


async def test_a_flood_of_output_does_not_stop_the_child_while_the_loop_is_busy(tmp_path: Path) -> None:
    flood = "import sys; [sys.stdout.write('x' * 1000 + '\\n') for _ in range(5000)]; print('done', flush=True)"
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        child = await supervisor.start(python("flood", flood + "; import time; time.sleep(600)"))
        deadline = time.monotonic() + 10
        while "done" not in child.tail() and time.monotonic() < deadline:
            time.sleep(0.02)  # noqa: ASYNC251 - the loop is blocked on purpose
        assert child.tail()[-1] == "done"


def test_h13_logs_rotate_within_their_bound(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "service.log", max_bytes=10_000, backups=2)
    for number in range(100):
        log.write(f"{number:04d} {'x' * 1000}\n".encode())
    log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["service.log", "service.log.1", "service.log.2"]
    assert all(path.stat().st_size <= 10_000 for path in tmp_path.iterdir())
    kept = "".join((tmp_path / name).read_text() for name in reversed(files))
    assert [int(line[:4]) for line in kept.splitlines()] == list(range(100 - len(kept.splitlines()), 100))


def test_h13_a_log_is_continued_after_a_restart(tmp_path: Path) -> None:
    for run in range(3):
        log = RotatingLog(tmp_path / "service.log", max_bytes=25, backups=1)
        log.write(f"run {run} writes\n".encode())
        log.close()
    assert (tmp_path / "service.log").read_text() == "run 2 writes\n"
    assert (tmp_path / "service.log.1").read_text() == "run 1 writes\n"


def test_one_launcher_per_run_folder(tmp_path: Path) -> None:
    first, second = RunFolderLock(tmp_path), RunFolderLock(tmp_path)
    first.acquire()
    with pytest.raises(StateError, match=rf"process {os.getpid()}.*default_local_dir"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_child_died_error_without_output(tmp_path: Path) -> None:
    error = ChildDiedError("trainer-0", -9, tmp_path / "trainer-0.log", [])
    assert "killed by SIGKILL" in str(error)
    assert "nothing" in str(error)
    assert error.metadata["returncode"] == "-9"
    assert describe_exit(-40) == "killed by signal 40"


async def until_lost(supervisor: Supervisor, name: str) -> None:
    async with asyncio.timeout(10):
        while True:
            if name in supervisor.lost:
                return
            await asyncio.sleep(0.02)


async def test_d6_a_death_in_a_group_is_told_and_survived_while_others_are_left(tmp_path: Path) -> None:
    async with Supervisor(tmp_path, grace_s=5) as supervisor:
        specs = [dataclasses.replace(python(f"rollout-{number}", IDLE), group="rollout") for number in range(2)]
        first, last = [await supervisor.start(spec) for spec in specs]
        supervisor.allow_losses("rollout")
        first.kill()
        await until_lost(supervisor, "rollout-0")
        assert not supervisor.failed.done()
        last.kill()
        error = await asyncio.wait_for(supervisor.failed, 10)
        assert error.member_id == "rollout-1"
        assert supervisor.lost == {"rollout-0"}
