"""Control groups: real ones where this machine lets us make some, and the kernel's own texts where it doesn't."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from argosy.sandbox.cgroups import find_places
from argosy.sandbox.group import Group, Groups, sweep
from argosy.sandbox.job import Job, Program
from argosy.sandbox.options import SandboxOptions, SandboxUnavailableError
from argosy.sandbox.runner import Sandbox

MIB = 1024**2


def groups_here() -> list[str]:
    with contextlib.closing(Groups(SandboxOptions())) as groups:
        return groups.bounds


def needs(*bounds: str) -> pytest.MarkDecorator:
    missing = set(bounds) - set(groups_here())
    return pytest.mark.skipif(bool(missing), reason=f"no control groups for {sorted(missing)} here")


def folders() -> list[Path]:
    """All sandboxes' groups that are there now."""
    return [path for place in find_places()[0] for path in Path(place.folder).glob("argosy-sandbox-*")]


@pytest.fixture
def sandbox() -> Iterator[Callable[..., Sandbox]]:
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(Sandbox(SandboxOptions(site_packages=False, **options)))


@pytest.fixture
def made() -> Iterator[Callable[..., Group]]:
    """A group of our own."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Group:
            group = stack.enter_context(contextlib.closing(Groups(SandboxOptions(**options)))).make()
            assert group is not None
            return group

        yield make


def _within(group: Group, code: str) -> str:
    """What a process prints that reads its input to the end first, and is in the group then."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    group.add(child.pid)
    return child.communicate("")[0]


def run(sandbox: Sandbox, code: str, limit_s: float = 30.0) -> Job:
    with sandbox.run(Program(code), deadline=time.monotonic() + 100) as job:
        job.feed(b"")
        job.pump(lambda: job.over, limit_s)
    return job


@needs("memory")
def test_g5_the_kernel_bounds_memory_between_two_looks(sandbox: Callable[..., Sandbox]) -> None:
    """Children that fill 150 MiB each at once are past 300 MiB in less than the 20 ms between two looks."""
    code = """
import os, mmap
ready, go = os.pipe(), os.pipe()
for _ in range(24):
    if os.fork() == 0:
        os.read(go[0], 1)
        area = mmap.mmap(-1, 150 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
        os.read(ready[0], 1)
os.write(go[1], b"x" * 24)
os.read(ready[0], 1)
"""
    chosen = sandbox(memory_bytes=300 * MIB, tmp_bytes=MIB, output_bytes=MIB)
    with chosen.run(Program(code), deadline=time.monotonic() + 100) as job:
        job.feed(b"")
        group, most = job._cell.group, 0
        assert group is not None
        end = time.monotonic() + 60
        while not group.out_of_memory():  # all the time nobody looks
            assert time.monotonic() < end
            most = max(most, group.memory_bytes() or 0)
        assert 250 * MIB < most < 360 * MIB
        job.pump(lambda: job.over, 30.0)
    assert job.ended is not None
    assert job.ended.how == "memory"


@needs("memory")
def test_memory_that_children_share_counts_once(sandbox: Callable[..., Sandbox]) -> None:
    code = """
import os, time
x = bytearray(b"x") * (200 << 20)
for _ in range(5):
    if os.fork() == 0:
        time.sleep(0.3)
        os._exit(0)
for _ in range(5): os.wait()
print(len(x))
"""
    job = run(sandbox(memory_bytes=300 * MIB), code)
    assert (job.ended and job.ended.how, bytes(job.stdout)) == ("exited", b"209715200\n")


@needs("processes")
def test_g5_the_kernel_bounds_processes_without_namespaces_too(made: Callable[..., Group]) -> None:
    code = """
import os, signal, sys, time
sys.stdin.read()
children = []
try:
    while len(children) < 60:
        children.append(os.fork())
        if children[-1] == 0: time.sleep(60)
except BlockingIOError: pass
for child in children: os.kill(child, signal.SIGKILL)
print(len(children))
"""
    group = made(process_count=9)
    assert int(_within(group, code)) == 9  # and the one that starts them, in place of pid 1


def test_g5_a_program_may_have_as_many_processes_as_its_limit_says(sandbox: Callable[..., Sandbox]) -> None:
    """Neither pid 1 nor the process outside is one of the program's."""
    code = """
import os, time
count = 1
try:
    while count < 60:
        if os.fork() == 0: time.sleep(60)
        count += 1
except BlockingIOError: pass
print(count)
"""
    for groups in ("auto", "off"):
        assert bytes(run(sandbox(process_count=9, control_groups=groups), code).stdout) == b"9\n"


@needs("processor time")
def test_g5_time_of_forgotten_children_counts_exactly(made: Callable[..., Group]) -> None:
    """What the kernel forgets of children whose parent ignores SIGCHLD, the group still knows."""
    code = """
import os, signal, sys, time
sys.stdin.read()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(20):
    if os.fork() == 0:
        while time.process_time() < 0.05: pass
        os._exit(0)
try: os.wait()
except ChildProcessError: pass
"""
    group = made()
    _within(group, code)
    used_s = group.cpu_s()
    assert used_s is not None
    assert 0.9 < used_s < 10


@needs("kill")
def test_g7_a_tree_is_killed_whole_without_namespaces(made: Callable[..., Group]) -> None:
    group = made()
    child = subprocess.Popen(["sleep", "286"])
    try:
        group.add(child.pid)
        group.kill()
        assert child.wait(timeout=60) == -signal.SIGKILL
    finally:
        child.kill()


@needs("processes")
def test_groups_are_gone_after_each_run_and_after_all(sandbox: Callable[..., Sandbox]) -> None:
    before = set(folders())
    chosen = sandbox()
    run(chosen, "print(1)")
    (own, *_) = set(folders()) - before
    assert [path for path in own.iterdir() if path.is_dir()] == []
    chosen.close()
    assert not set(folders()) - before


LEFT_BEHIND = """
import os, signal, subprocess, sys, time
from argosy.sandbox.job import Program
from argosy.sandbox.options import SandboxOptions
from argosy.sandbox.runner import Sandbox
sandbox = Sandbox(SandboxOptions(site_packages=False))
job = sandbox.run(Program("import time\\ntime.sleep(99)"), deadline=time.monotonic() + 99)
if sys.argv[1] == "keeper":
    sandbox._keeper.kill()
job._cell.group.add(int(sys.argv[2]))
print(sandbox._groups._name, flush=True)
time.sleep(99)
"""


@needs("processes")
@pytest.mark.parametrize("who", ["worker", "keeper and worker"])
def test_what_killed_processes_leave_is_swept(who: str) -> None:
    """Here even a process in it that nothing else would end."""
    stays = subprocess.Popen(["sleep", "285"])
    owner = subprocess.Popen(
        [sys.executable, "-c", LEFT_BEHIND, who.split()[0], str(stays.pid)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        name = owner.stdout.readline().strip()
        left = [path for path in folders() if path.name == name]
        assert left
        sweep()  # it lives: its groups are its own
        assert all(path.exists() for path in left)
        assert stays.poll() is None
        owner.kill()
        owner.wait()
        sweep()
        assert not any(path.exists() for path in left)
        assert stays.wait(timeout=60) == -signal.SIGKILL
    finally:
        for process in (owner, stays):
            process.kill()
            process.wait()


def test_what_is_in_force_is_said(sandbox: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = sandbox(control_groups="off")
    chosen.start()
    assert "no control groups (switched off): memory is looked at every 20 ms" in chosen.describe()
    monkeypatch.setattr("argosy.sandbox.group.find_places", lambda: ([], ["/sys/fs/cgroup: Read-only file system"]))
    assert "no control groups (/sys/fs/cgroup: Read-only file system)" in _started(sandbox()).describe()
    with pytest.raises(SandboxUnavailableError, match=r"Read-only file system.*control_groups=auto"):
        sandbox(control_groups="required").start()


@needs("memory", "processes")
def test_required_groups_are_there_where_the_kernel_has_them(sandbox: Callable[..., Sandbox]) -> None:
    assert "control groups: memory, processes" in _started(sandbox(control_groups="required")).describe()


@needs("processor shares")
def test_programs_in_the_background_leave_the_processors_to_others(sandbox: Callable[..., Sandbox]) -> None:
    """A group competes as one whose share hides its processes' own wish to come last."""
    _started(sandbox(background=True))
    idle = [path / "cpu.idle" for path in folders() if (path / "cpu.idle").exists()]
    assert "1" in [path.read_text().strip() for path in idle] or not idle


def _started(sandbox: Sandbox) -> Sandbox:
    sandbox.start()
    return sandbox
