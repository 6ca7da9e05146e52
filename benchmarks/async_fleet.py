"""The controller's own loop over a simulated fleet on a virtual clock: what staleness buys, what the controller costs.

    python benchmarks/async_fleet.py                                      # 8 and 64 servers, staleness 0, 1, 2, 4
    python benchmarks/async_fleet.py --servers 256 1024 --staleness 0 1   # what a large fleet costs the controller
    python benchmarks/async_fleet.py --servers 8 --slow 8                 # one server of the eight is slow

Servers and trainer compute nothing; lengths and durations come from published figures (simulated_fleet/workload.py).
Processor time and pauses of the event loop are real, everything else is virtual.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulated_fleet.run import FleetResult
    from simulated_fleet.workload import Workload

QUICK_SAMPLES_PER_SERVER = 32
COLUMNS = (
    "servers  K  step s  samples/s  ratio  bound  trainer  servers  stale mean/max  CPU s/step  could do/s      MB"
    "  pause p99/max ms  gc ms  real samples/s"
)


def main() -> None:
    """Print one line for each run, and where the controller's processor time went in the largest."""
    from simulated_fleet.workload import GROUP, SAMPLES_PER_SERVER

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, nargs="+", default=[8, 64], help="sizes of the fleet (default 8 64)")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4], help="values of argosy.max_staleness")
    parser.add_argument(
        "--steps",
        type=int,
        default=20,
        help="steps that count; others come before and after them, the more the higher the staleness (default 20)",
    )
    parser.add_argument(
        "--samples-per-server", type=int, default=SAMPLES_PER_SERVER, help="of a step (default %(default)s, as verl's)"
    )
    parser.add_argument("--slow", type=float, default=1.0, help="by how much the first server is slower (default 1)")
    parser.add_argument("--median", type=float, default=1000.0, help="tokens of the median answer (default 1000)")
    parser.add_argument("--threads", type=int, default=1, help="of numerical libraries (the controller uses one)")
    parser.add_argument("--top", type=int, default=15, help="functions that are shown of the last run (default 15)")
    parser.add_argument("--quick", action="store_true", help="2 servers, staleness 0 and 1, 2 steps: does it run?")
    parser.add_argument("--json", action="store_true", help="the results as one line of JSON at the end")
    args = parser.parse_args()
    if args.steps < 1 or args.samples_per_server % GROUP:
        parser.error(f"--steps must be above 0, and --samples-per-server a multiple of a group's {GROUP}")

    import torch
    from simulated_fleet.workload import Workload

    torch.set_num_threads(args.threads)
    if args.quick:
        args.servers, args.staleness, args.steps, args.samples_per_server = [2], [0, 1], 2, QUICK_SAMPLES_PER_SERVER
    work = Workload(median=args.median, samples_per_server=args.samples_per_server)
    found = measure(work, args.servers, args.staleness, args.steps, args.slow)
    for title, top in (("controller's time", found[-1].top), ("its longest pause", found[-1].longest)):
        print(f"{title} in the last run:")
        for name, share in top[: args.top]:
            print(f"  {100 * share:5.1f} %  {name}")
    if args.json:
        print(json.dumps([asdict(one) for one in found]))


def measure(
    work: Workload, sizes: list[int], values: list[int], steps: int, slowness: float = 1.0
) -> list[FleetResult]:
    """One run of so many counted steps for each size and staleness, printed as it comes. Ratio and bound are to the
    size's run with staleness 0."""
    from simulated_fleet.run import run_fleet
    from simulated_fleet.workload import bound_of

    found = []
    print(COLUMNS)
    for servers in sizes:
        bound, synchronous = bound_of(work, servers), None
        for staleness in values:
            one = run_fleet(work, servers, staleness, steps, slowness)
            found.append(one)
            if staleness == 0:
                synchronous = one.step_s
            ratio, most = "    -", "    -"
            if synchronous:
                ratio, most = f"{synchronous / one.step_s:5.2f}", f"{bound.ratio(synchronous):5.2f}"
            print(
                f"{servers:7d} {staleness:2d} {one.step_s:7.1f} {one.samples_per_s:10.2f}  {ratio}  {most} "
                f"{100 * one.trainer_busy:6.0f} % {100 * one.servers_busy:6.0f} % "
                f"{one.staleness_mean:9.2f}/{one.staleness_max:.0f} {one.controller_cpu_s:14.2f} "
                f"{one.controller_samples_per_s:11.0f} {one.memory_mb:7.0f}"
                f" {one.pause_p99_ms:8.1f}/{one.pause_max_ms:<6.0f} {one.collector_max_ms:7.0f}"
                f" {one.real_samples_per_s:15.0f}",
                flush=True,
            )
    return found


if __name__ == "__main__":
    main()
