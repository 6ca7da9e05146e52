from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from argosy.modeling.memory import peak_memory_bytes

LARGE_BLOCK = """
import ctypes, sys
from argosy.modeling.memory import keep_freed_memory
libc = ctypes.CDLL(None)
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
libc.mallinfo2.restype = Info
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
if sys.argv[1] == "keep":
    assert keep_freed_memory()
before = libc.mallinfo2().hblks
libc.malloc(64 << 20)
print(libc.mallinfo2().hblks - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="not glibc 2.33 or later")
@pytest.mark.parametrize(("mode", "mapped"), [("keep", 0), ("plain", 1)])
def test_a_large_block_is_mapped_by_itself_unless_freed_memory_is_kept(mode: str, mapped: int) -> None:
    command = [sys.executable, "-c", LARGE_BLOCK, mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) == mapped


GAPS = """
import psutil
from argosy.modeling.memory import keep_freed_memory, return_freed_memory
assert keep_freed_memory()
blocks = [bytearray(b"x") * (4 << 20) for _ in range(40)]
del blocks[::2]
resident = psutil.Process().memory_info().rss
assert return_freed_memory()
print(resident - psutil.Process().memory_info().rss)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_gaps_between_blocks_go_back_to_the_system_when_asked() -> None:
    done = subprocess.run([sys.executable, "-c", GAPS], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) > 15 * (4 << 20)


def test_peak_memory_never_falls() -> None:
    before = peak_memory_bytes()
    block = bytearray(50_000_000)
    block[::4096] = b"x" * len(block[::4096])
    peak = peak_memory_bytes()
    del block
    assert peak_memory_bytes() >= peak >= before > 10_000_000
