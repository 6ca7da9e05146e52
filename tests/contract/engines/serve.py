"""One rollout server over one engine, as a process of any interpreter that has argosy: `python serve.py VALUES`.

VALUES is JSON of configuration keys. It prints one line of JSON with its address when it is ready, serves until its
standard input ends, and ends with 1 if its engine fails, as the service program does. Membership is left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import Any

from argosy.config import Config
from argosy.rpc.gate import Gate
from argosy.rpc.host_options import set_threads
from argosy.rpc.server import RpcServer

INTERVAL_TOKENS = 4
"""So that answers of the tests' lengths come in several pieces."""


async def serve(config: Config) -> int:
    """The exit code."""
    from argosy.rollout.build import build_core
    from argosy.rollout.service import add_to_server

    core = await asyncio.to_thread(build_core, config, start_stale=False)
    await core.start()
    gate = Gate("rollout-0")
    server = RpcServer.listen("127.0.0.1", 0, gate=gate)
    await server.start()
    await server.serve(add_to_server(core, server.server, gate, interval_tokens=INTERVAL_TOKENS))
    print(json.dumps({"address": server.address}), flush=True)
    told = asyncio.get_running_loop().create_future()
    threading.Thread(target=_until_told, args=(told,), daemon=True).start()
    failed = asyncio.ensure_future(core.wait_failed())
    await asyncio.wait([told, failed], return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        print(f"the engine has failed: {failed.result()}", file=sys.stderr)
        await asyncio.sleep(0.5)  # what samples say last still goes out
    await server.stop(1)
    await core.close()
    return 1 if failed.done() else 0


def _until_told(told: asyncio.Future[None]) -> None:
    sys.stdin.read()
    told.get_loop().call_soon_threadsafe(told.set_result, None)


def main() -> None:
    """Read the configuration, serve, leave."""
    values: dict[str, Any] = json.loads(sys.argv[1])
    config = Config().with_values(values)
    set_threads(config.argosy.threads_of("rollout"))
    code = asyncio.run(serve(config))
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":  # engines start workers that import this file again
    main()
