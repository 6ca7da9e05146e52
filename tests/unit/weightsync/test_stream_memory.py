"""The memory of a stream's messages: taken from the system once, not for each message anew."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from argosy.weightsync.transports import stream

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def take_messages(count):
    held = []
    for _ in range(count):
        held.append(bytearray(b"x" * (1 << 20)))
        if len(held) == 3:
            held.clear()

stream.keep_freed_memory()
take_messages(10)
before = faults()
take_messages(90)
print(faults() - before)
"""
PAGES = 90 << 8
"""Of 90 messages."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other rules")
def test_messages_do_not_take_fresh_pages_each() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) < PAGES / 4
