"""Programs of the lowest priority: they give way, and no clock ends them for that (case G11)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from argosy.sandbox.job import Program
from argosy.sandbox.options import SandboxOptions
from argosy.sandbox.runner import Sandbox

WORK = "import threading, time\n"
WORK += "def work():\n    while time.thread_time() < 0.4: pass\n"
WORK += "thread = threading.Thread(target=work)\nthread.start()\nthread.join()\nprint('done')"
"""0.4 s of processor time, in a thread that another one waits for."""


@pytest.fixture
def _busy_machine() -> Iterator[None]:
    """Every processor has something better to do, for three seconds."""
    spin = "import time\nend = time.time() + 3\nwhile time.time() < end: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(len(os.sched_getaffinity(0)))]
    time.sleep(0.7)  # until they spin
    yield
    for process in spinning:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("_busy_machine")
def test_g11_a_program_in_the_background_is_not_ended_for_waiting() -> None:
    deadline = time.monotonic() + 60
    with Sandbox(SandboxOptions(background=True)) as sandbox, sandbox.run(Program(WORK), deadline=deadline) as job:
        job.feed(b"")
        job.pump(lambda: job.over, 0.8)
        assert job.ended is not None
        assert (job.ended.how, bytes(job.stdout)) == ("exited", b"done\n")


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)"])
def test_what_hangs_in_the_background_ends_at_its_limit(code: str) -> None:
    deadline = time.monotonic() + 100
    with Sandbox(SandboxOptions(background=True)) as sandbox, sandbox.run(Program(code), deadline=deadline) as job:
        job.feed(b"")
        job.pump(lambda: job.over, 0.3)
        assert job.ended is not None
        assert job.ended.how == "timeout"
        assert job.used_s == pytest.approx(0.3)
