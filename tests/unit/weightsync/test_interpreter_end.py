"""A process that ends while weights travel in threads of it ends in order, and soon."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEAVES = """
import threading
from argosy.weightsync.collective.groups import join_store, make_lanes, serve_store
from argosy.weightsync.collective.receiving import leave

store = serve_store("127.0.0.1", 60)
stores = [store, join_store(f"127.0.0.1:{store.port}", 60)]
made = {}

def join(rank):
    made[rank] = make_lanes("gloo", stores[rank], "g", rank, 2, "127.0.0.1", 60)

threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
leave(made[0])
leave(made[1])
"""

RECEIVES = """
import atexit, time

from argosy.weightsync import threads
from argosy.weightsync.collective.groups import serve_store
from argosy.weightsync.collective.receiving import Receipts
from argosy.weightsync.memory import allocate

atexit.register(lambda: print(len(threads._running), "run", flush=True))  # after those that are registered later
atexit.unregister(threads.end_threads)
atexit.register(threads.end_threads)
store = serve_store("127.0.0.1", 60)
memory, file = allocate(1 << 20)
receipts = Receipts()
receipts.begin({
    "path": file.path, "size_bytes": 1 << 20, "file_id": file.file_id, "endpoint": f"127.0.0.1:{store.port}",
    "group": "g", "backend": "gloo", "bucket_bytes": 1 << 20, "rank": 1, "size": 2, "device": "cpu",
    "spans": [[0, 1 << 20]], "timeout_s": 60.0,
})
while not store.check(["g/joined/1"]):
    time.sleep(0.001)
print(len(threads._running), "run", flush=True)
"""


@pytest.mark.parametrize(("program", "printed"), [(LEAVES, ""), (RECEIVES, "1 run\n0 run\n")], ids=["leaves", "waits"])
def test_the_interpreter_may_end(program: str, printed: str) -> None:
    """While gloo's own threads are taken apart, and while a sender is waited for that never comes."""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, printed), ended.stderr[-2000:]
