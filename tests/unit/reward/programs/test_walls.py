"""Case G6, wall by wall: what a program can read, write and reach."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from argosy.types.records import Scored

Run = Callable[..., Scored]


def test_g6_secrets_stay_outside(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither our environment, nor our files, nor descriptors, nor the hidden tests."""
    monkeypatch.setenv("ARGOSY_SECRET", "s3cret")
    (tmp_path / "tests.json").write_text("s3cret")
    with open(tmp_path / "tests.json") as held:
        os.set_inheritable(held.fileno(), True)
        code = f"""
import gc, os, sys
found = str(dict(os.environ)) + str(gc.get_objects())[:5_000_000]
for path in [{str(tmp_path / "tests.json")!r}, *(f"/proc/self/fd/{{n}}" for n in range(3, 50))]:
    try: found += open(path).read()
    except OSError: pass
secrets = ["".join(["s3", "cret"]) in found, "".join(["hid", "den"]) in found]
print(*secrets, sorted(os.listdir("/proc/self/fd"))[:3], os.listdir("/tmp"))
"""
        outcome = run(code, {"inputs": ["1", "2"], "outputs": ["hidden output", "False False ['0', '1', '2'] []"]})
    assert outcome.parts["passed"] == 0.5, outcome


def test_g6_each_wall_is_there(run: Run) -> None:
    """What the kernel says of the program from inside; several walls hide behind each other in the other tests."""
    code = """
import os, resource
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(*(int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")))
print(status["NoNewPrivs"].strip(), status["Seccomp"].strip(), *open("/proc/self/uid_map").read().split()[::2])
print([line.split(":")[0].strip() for line in open("/proc/self/net/dev") if ":" in line])
mounts = [line.split() for line in open("/proc/self/mountinfo")]
print(sorted(m[4] for m in mounts if "ro" not in m[5].split(",") and not m[4].startswith(("/dev/", "/proc"))))
print(sorted(m[4] for m in mounts if "nosuid" not in m[5].split(",") and m[4] != "/proc"), os.uname().nodename)
limits = ("CPU", "AS", "DATA", "FSIZE", "NPROC", "NOFILE", "CORE", "MEMLOCK")
print([name for name in limits if resource.getrlimit(getattr(resource, "RLIMIT_" + name))[1] == resource.RLIM_INFINITY])
print(os.getsid(0) == os.getpid(), len(os.environ), os.path.exists("/dev/shm"))
"""
    expected = "0 0 0 0 0 / 1 2 65534 1 / ['lo'] / ['/tmp'] / [] sandbox / [] / True 9 True".replace(" / ", "\n")
    assert run(code, {"inputs": [""], "outputs": [expected]}).score == 1.0


def test_packages_below_tmp_can_be_imported_and_tmp_is_empty_all_the_same(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where a clone with its environment lies below /tmp."""
    tmp_path.chmod(0o755)
    (tmp_path / "fortytwo.py").write_text("VALUE = 42")
    monkeypatch.setattr("argosy.sandbox.runner._site_packages", lambda: [str(tmp_path)])
    code = """
import fortytwo, os
print(fortytwo.VALUE, os.listdir("/tmp"), os.access(fortytwo.__file__, os.W_OK))
"""
    assert str(tmp_path).startswith("/tmp/")
    assert run(code, {"inputs": [""], "outputs": ["42 [] False"]}).score == 1.0


@pytest.mark.parametrize(
    "path",
    [
        "/proc/1/environ", "/proc/1/maps", "/proc/1/mem", "/proc/1/fd", "/proc/1/root", "/proc/1/cwd", "/etc/shadow",
        "/home", "/root/.bashrc", "/proc/meminfo", "/proc/sys", "/sys", "/var", "/run", "/dev/vda", "/dev/tty",
    ],
)  # fmt: skip
def test_g6_what_can_not_be_read(run: Run, path: str) -> None:
    code = f"""
import os
try:
    found = os.listdir({path!r}) if os.path.isdir({path!r}) else open({path!r}, "rb").read(1)
    print("read", found)
except OSError:
    print("no")
"""
    assert run(code, {"inputs": [""], "outputs": ["no"]}).score == 1.0


def test_g6_no_network_by_socket_ctypes_or_child(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        code = f"""
import ctypes, socket, subprocess
for attempt in (
    lambda: socket.create_connection(("127.0.0.1", {port}), 1),
    lambda: subprocess.run(["/bin/bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/{port}"], check=True, capture_output=True),
):
    try: attempt()
    except Exception as error: print("refused")
print(ctypes.CDLL(None).socket(2, 1, 0))
"""
        assert run(code, {"inputs": [""], "outputs": ["refused refused -1"]}).score == 1.0
        with pytest.raises(TimeoutError):
            server.accept()


def test_g6_writes_only_to_its_own_folder(run: Run) -> None:
    code = """
import os
for path in ("/x", "/usr/x", "/etc/x", "/proc/x", "/dev/x", os.path.dirname(os.__file__) + "/os.py"):
    try: open(path, "a"); print("wrote", path)
    except OSError: pass
open("/tmp/x", "w").write("kept")
print(open("/tmp/x").read(), os.path.exists("/tmp/y"))
open("/tmp/y", "w")
"""
    tests = {"inputs": ["", ""], "outputs": ["kept False", "kept False"]}
    assert run(code, tests).score == 1.0, "the second run must not see the first one's files"
