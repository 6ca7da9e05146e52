"""Who may run it: root, an ordinary user, and nobody where the kernel says no."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import argosy.sandbox

NOBODY = 65534
PACKAGE = Path(argosy.sandbox.__file__).parent
PROGRAM = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from argosy.sandbox.job import Program
from argosy.sandbox.options import SandboxOptions, SandboxUnavailableError
from argosy.sandbox.runner import Sandbox
CODES = ["import os; print(os.getuid(), os.getpid(), os.listdir('/tmp'))", "import os; os.listdir('/home')",
         "import os, sys; os.fork() or os.execv('/bin/sleep', ['sleep', '287'])", "import socket; socket.socket()",
         "import ctypes; print(ctypes.CDLL(None).syscall(101, 0, 0, 0, 0))", "x = bytearray(4 << 30)",
         "print(open('/dev/stdin').read(), 'by name', file=open('/dev/stdout', 'w'))"]
CHILDREN = '''
import os, time
for _ in range(4):
    if os.fork() == 0:
        x = bytearray(b'x') * (100 << 20)
        time.sleep(99)
time.sleep(99)
'''
found = {}
with Sandbox(SandboxOptions(isolation=sys.argv[2], site_packages=False, memory_bytes=300 << 20)) as sandbox:
    try:
        sandbox.start()
        found["parts"] = sandbox.parts
        for code in CODES:
            with sandbox.run(Program(code), deadline=time.monotonic() + 60) as job:
                job.feed(b"")
                job.pump(lambda: job.over, 5.0)
                found[code] = [job.stdout.decode(), job.errors.decode().strip().rpartition("\\n")[2]]
        for name, code, limit_s in (
            ("spin", "while True: pass", 0.3), ("sleep", "import time; time.sleep(9)", 0.3), ("children", CHILDREN, 20),
        ):
            with sandbox.run(Program(code), deadline=time.monotonic() + 60) as job:
                job.pump(lambda: job.over, limit_s)
                found[name] = job.ended.how
    except SandboxUnavailableError as error:
        found["unavailable"] = str(error)
print(json.dumps(found))
"""
NO_MORE_NAMESPACES = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
"""In a user namespace of its own, whose limit of further ones is 0: the kernel refuses, as some containers' does."""
CONTAINERS_PROFILE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from argosy.sandbox import kernel, seccomp
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, what="PR_SET_NO_NEW_PRIVS")
seccomp.install(children_signals=True)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""A system call filter that refuses namespaces and mounts, as Docker's and Kubernetes' default profiles do."""
MASKED_PROC = 'mount -t tmpfs none /proc/tty && exec "$@"'
"""Something lies over a part of /proc, as in containers: most kernels let nobody mount a whole one below."""


@pytest.fixture
def sources() -> Iterator[str]:
    """Our sandbox where every user can read it; checkouts and pytest's folders often can't be read."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        shutil.copytree(PACKAGE, Path(folder, "argosy", "sandbox"), ignore=shutil.ignore_patterns("__pycache__"))
        yield folder


def readable_interpreter() -> str:
    """A Python that any user can start: ours, or the system's."""
    for path in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        check = [path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            if subprocess.run(check, check=False, **as_nobody(), stderr=subprocess.DEVNULL).returncode == 0:
                return path
        except OSError:
            continue
    pytest.skip("no Python 3.11 that an ordinary user can start")


def as_nobody() -> dict[str, Any]:
    """For subprocess.run. Without root, we are an ordinary user ourselves."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def outcome(sources: str, isolation: str, *, user: dict[str, Any], prefix: tuple[str, ...] = ()) -> dict[str, object]:
    interpreter = readable_interpreter() if user or prefix else sys.executable
    command = [*prefix, interpreter, "-c", PROGRAM, sources, isolation]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, cwd="/", **user)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def check_isolated(found: dict[str, object]) -> None:
    assert found["parts"] == {"namespaces": True, "proc": True, "seccomp": True}
    user, home, _, network, trace, memory, by_name = list(found.values())[1:8]
    assert user == ["65534 2 []\n", ""]
    assert "FileNotFoundError" in str(home)
    assert "PermissionError" in str(network)
    assert trace == ["-1\n", ""]
    assert "MemoryError" in str(memory)
    assert by_name == [" by name\n", ""]
    assert (found["spin"], found["sleep"], found["children"]) == ("timeout", "timeout", "memory")


def sleepers() -> list[str]:
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            command = Path("/proc", name, "cmdline").read_bytes()
        except OSError:
            continue
        if command == b"sleep\x00287\x00":
            found.append(name)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_as_root(sources: str) -> None:
    check_isolated(outcome(sources, "required", user={}))
    assert not sleepers()


def test_as_an_ordinary_user(sources: str) -> None:
    check_isolated(outcome(sources, "required", user=as_nobody()))
    assert not sleepers()


def refused(sources: str, isolation: str) -> dict[str, object]:
    prefix = ("unshare", "--user", "--map-root-user", "sh", "-c", NO_MORE_NAMESPACES, "sh")
    return outcome(sources, isolation, user=as_nobody(), prefix=prefix)


def test_a_kernel_that_refuses_is_named_and_nothing_runs(sources: str) -> None:
    found = refused(sources, "required")
    assert list(found) == ["unavailable"]
    assert "unshare(" in str(found["unavailable"])
    assert "No space left on device" in str(found["unavailable"])
    assert "argosy.reward.sandbox.isolation=allowed_without" in str(found["unavailable"])


@pytest.mark.parametrize("who", ["root", "an ordinary user"])
def test_a_containers_profile_that_refuses_is_named(sources: str, who: str) -> None:
    if who == "root" and os.geteuid() != 0:
        pytest.skip("not root")
    prefix = (readable_interpreter(), "-c", CONTAINERS_PROFILE, sources)
    found = outcome(sources, "required", user={} if who == "root" else as_nobody(), prefix=prefix)
    assert list(found) == ["unavailable"]
    assert "unshare(" in str(found["unavailable"])
    assert "Operation not permitted (a system call filter is on: does the container's profile" in str(
        found["unavailable"]
    )


def test_where_proc_is_masked_the_rest_holds(sources: str) -> None:
    prefix = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MASKED_PROC, "sh")
    found = outcome(sources, "required", user=as_nobody(), prefix=prefix)
    parts = found["parts"]
    assert isinstance(parts, dict)
    assert (parts["namespaces"], parts["seccomp"]) == (True, True)
    assert parts["proc"] is True or "mount(proc at /proc): Operation not permitted" in str(parts["proc"])
    user, home, _, network, trace, memory, by_name = list(found.values())[1:8]
    assert user == ["65534 2 []\n", ""]
    assert "FileNotFoundError" in str(home)
    assert "PermissionError" in str(network)
    assert trace == ["-1\n", ""]
    assert "MemoryError" in str(memory)
    assert by_name == [" by name\n", ""] if parts["proc"] is True else "FileNotFoundError" in str(by_name)
    assert (found["spin"], found["sleep"], found["children"]) == ("timeout", "timeout", "memory")
    assert not sleepers()


def test_allowed_without_keeps_limits_filter_and_cleaning_up(sources: str) -> None:
    found = refused(sources, "allowed_without")
    parts = found["parts"]
    assert isinstance(parts, dict)
    assert (parts["seccomp"], "unshare(" in str(parts["namespaces"])) == (True, True)
    user, _, _, network, trace, memory, by_name = list(found.values())[1:8]
    assert "[" in str(user)
    assert "PermissionError" in str(network)
    assert trace == ["-1\n", ""]
    assert "MemoryError" in str(memory)
    assert by_name == [" by name\n", ""]
    assert (found["spin"], found["sleep"], found["children"]) == ("timeout", "timeout", "memory")
    assert not sleepers()
