"""Where groups can be made: the kernel's own texts, and real groups of version 2 where this machine has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from argosy.sandbox.cgroups import Mount, Place, find_places, own_folders, read_mounts, write
from argosy.sandbox.group import Group

HYBRID = """\
35 24 0:31 / /sys/fs/cgroup ro - tmpfs tmpfs ro
36 35 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
37 35 0:33 /jobs /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
38 35 0:34 / /sys/fs/cgroup/uni\\040fied rw - cgroup2 cgroup2 rw,nsdelegate
"""
HYBRID_MEMBERSHIPS = "9:name=systemd:/x\n5:cpu,cpuacct:/jobs/7\n4:memory:/a/b\n3:freezer:/\n0::/user.slice/1.scope\n"


def test_memberships_of_both_versions_lead_to_folders() -> None:
    mounts = read_mounts(HYBRID)
    assert mounts[2] == Mount(2, "/", "/sys/fs/cgroup/uni fied", frozenset({"rw", "nsdelegate"}))
    assert own_folders(mounts, HYBRID_MEMBERSHIPS, ("memory", "pids", "cpu", "cpuacct")) == [
        (1, "/sys/fs/cgroup/cpu,cpuacct/7", frozenset({"cpu", "cpuacct"})),
        (1, "/sys/fs/cgroup/memory/a/b", frozenset({"memory"})),
        (2, "/sys/fs/cgroup/uni fied/user.slice/1.scope", frozenset()),
    ]


@pytest.mark.parametrize("path", ["/../other", "/elsewhere", "/jobsite"])
def test_a_group_that_no_mount_shows_is_left_out(path: str) -> None:
    """A container sees some other part of the hierarchy, or none of its own."""
    mounts = [Mount(1, "/jobs", "/sys/fs/cgroup/memory", frozenset({"rw", "memory"}))]
    assert own_folders(mounts, f"4:memory:{path}\n", ("memory",)) == []


def test_a_place_that_may_not_be_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary user below somebody else's folder, or a container's read-only mount."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    places, reasons = find_places()
    assert places == []
    assert all("may not make groups" in reason or "mounted" in reason for reason in reasons)
    assert Group([(Place(1, str(tmp_path), frozenset()), str(tmp_path / "1"))]).bounds == []


IN_A_GROUP = """
import json, os, sys
from argosy.sandbox import cgroups
own, controller, delegated = sys.argv[1:]
with open(f"{own}/cgroup.procs", "w") as file: file.write("0")
if delegated == "yes": os.setxattr(own, "trusted.delegate", b"1")
found = []
for _ in range(2):  # a second process of the service finds what the first made
    places, reasons = cgroups.find_places((controller,))
    found.append([[[place.folder, sorted(place.controllers)] for place in places if place.version == 2], reasons])
print(json.dumps([*found, open("/proc/self/cgroup").read()]))
"""


@pytest.fixture
def unified() -> Iterator[tuple[Path, str]]:
    """A group of version 2 with a controller, whichever this machine has there."""
    root = next(
        (Path(mount.folder) for mount in read_mounts(Path("/proc/self/mountinfo").read_text()) if mount.version == 2),
        None,
    )
    free = sorted(set((root / "cgroup.controllers").read_text().split()) - {"cpuset"}) if root else []
    if root is None or os.geteuid() != 0 or not free or not os.access(root, os.W_OK) or (root / "cgroup.type").exists():
        pytest.skip("no control groups of version 2 that we could divide")
    given = (root / "cgroup.subtree_control").read_text().split()
    controller = "memory" if "memory" in free else free[0]
    write(str(root / "cgroup.subtree_control"), f"+{controller}")
    own = root / f"argosy-test-{os.getpid()}"
    own.mkdir()
    yield own, controller
    for path in (own / "argosy-service", own):
        if path.exists():
            path.rmdir()
    if controller not in given:
        write(str(root / "cgroup.subtree_control"), f"-{controller}")


@pytest.mark.parametrize("delegated", ["yes", "no"])
def test_a_group_with_processes_is_divided_if_it_is_ours(unified: tuple[Path, str], delegated: str) -> None:
    own, controller = unified
    command = [sys.executable, "-c", IN_A_GROUP, str(own), controller, delegated]
    first, second, memberships = json.loads(subprocess.check_output(command, text=True))
    if delegated == "yes":
        assert first == second == [[[str(own), [controller]]], []]
        assert f"{own.name}/argosy-service\n" in memberships
    else:
        assert first[0] == []
        assert f"its controllers ({controller}) can't be divided" in str(first[1])
        assert f"{own.name}\n" in memberships  # nothing was moved
