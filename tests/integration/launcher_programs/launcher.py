"""What `argosy train` does around its loop: signals, a fleet, work that is raced against deaths, the cause last."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from argosy.config import Config
from argosy.controller.launch import ChildDiedError, LocalFleet, StopSignals
from argosy.telemetry.logs import setup_logging


async def run(run_dir: Path, grace_s: float) -> int:
    config = Config().with_values({"argosy.stop_grace_s": grace_s, "argosy.startup_timeout_s": 60.0})
    counts = {"trainer": 1, "reward": 1, "rollout": 1}
    modules = dict.fromkeys(counts, "fake_service")
    with StopSignals() as signals:
        signals.cancel(asyncio.current_task())
        try:
            async with LocalFleet(config, run_dir, counts=counts, modules=modules) as fleet:
                members = [member for of_role in fleet.members.values() for member in of_role]
                seen = {member.member_id: [member.address, member.state.value] for member in members}
                print("READY", json.dumps(seen), flush=True)
                await fleet.race(asyncio.sleep(3600))
        except asyncio.CancelledError:
            print("stopped in order", flush=True)
        return signals.exit_code


def main() -> int:
    setup_logging("controller-0")
    try:
        return asyncio.run(run(Path(sys.argv[1]), float(sys.argv[2])))
    except ChildDiedError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
