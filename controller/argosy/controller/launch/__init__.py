"""Starts a fleet on one machine, watches over it, and ends all of it.

    async with LocalFleet(cfg, run_dir) as fleet:
        await fleet.race(loop.run(fleet.membership, fleet.members))

Three things keep processes from outliving the run: an ordered drain on the way out; PR_SET_PDEATHSIG, by which the
kernel kills the services of a launcher that died; and a watchdog process that then kills what the services started.
"""

from argosy.controller.launch.errors import ChildDiedError, SetbackError
from argosy.controller.launch.fleet import LocalFleet
from argosy.controller.launch.signals import StopSignals

__all__ = ["ChildDiedError", "LocalFleet", "SetbackError", "StopSignals"]
