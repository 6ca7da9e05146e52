"""A service with a core that does nothing, through the real host: gRPC, health, membership, drain.

`FAKE_BEHAVIOUR` is JSON: member id → "crash" (in build), "slow" (20 s build), "fail" (its engine dies after 0.5 s),
"hang" (never ends on SIGTERM: its close blocks).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

from argosy.rpc.host import Service, main


class Core:
    def __init__(self, behaviour: str, state: str) -> None:
        self.behaviour = behaviour
        self.state = state
        # What a worker pool is to the real services: a grandchild of the launcher.
        idle = [sys.executable, "-c", "import time; time.sleep(600)"]
        null = subprocess.DEVNULL
        self.worker = subprocess.Popen(idle, start_new_session=True, stdout=null, stderr=null)

    async def status(self) -> Any:
        return SimpleNamespace(state=self.state, version=None)

    async def wait_failed(self) -> BaseException:
        if self.behaviour == "fail":
            await asyncio.sleep(0.5)
            return RuntimeError("the engine thread is dead")
        await asyncio.Event().wait()
        raise AssertionError("never set")

    async def close(self) -> None:
        print("closing the core", flush=True)
        if self.behaviour == "hang":
            time.sleep(600)  # noqa: ASYNC251 - stuck on purpose
        self.worker.terminate()
        self.worker.wait()


def build(config: Any) -> Core:
    member = sys.argv[sys.argv.index("--member") + 1]
    behaviour = json.loads(os.environ.get("FAKE_BEHAVIOUR", "{}")).get(member, "")
    if behaviour == "crash":
        raise RuntimeError("no such model")
    if behaviour == "slow":
        time.sleep(20)
    return Core(behaviour, "stale" if member.startswith("rollout") else "ready")


if __name__ == "__main__":
    role = sys.argv[sys.argv.index("--member") + 1].partition("-")[0]
    service = Service(role, "Does nothing.", build, lambda core, server, gate, config: [])
    main(service)
