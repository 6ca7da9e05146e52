"""What programs cost before they can work, in fresh processes: processor and wall time, the median of N.

python benchmarks/startup.py [--runs 5] [--quick]

`rollout` is the embedded engine on a tiny model, up to its first tokens; `reference` and `trainer` load that model too;
the others are imports alone. Services also register and wait for the controller, which takes no processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_HEAD = """
import asyncio
from argosy.config import Config
from argosy.rpc.garbage import no_full_collections
no_full_collections().__enter__()
config = Config().with_values({{"actor_rollout_ref.model.path": {model!r}, "actor_rollout_ref.rollout.name": "hf"}})
"""
_ROLLOUT = """
import argosy.rpc.host
from argosy.rollout.build import build_core
core = build_core(config)
async def first_tokens():
    await core.start()
    await core.close()
asyncio.run(first_tokens())
"""
PROGRAMS = {
    "rollout": _HEAD + _ROLLOUT,
    "reference": _HEAD + "from argosy.reference.build import build_core\nbuild_core(config)",
    "trainer": _HEAD + "from argosy.trainer.build import build_core\nbuild_core(config)",
    "reward": "import argosy.rpc.host, argosy.reward.__main__, argosy.reward.build",
    "argosy train": "import argosy.controller.entry, argosy.controller.entry_fleet",
    "argosy --help": "from argosy.cli.main import build_parser; build_parser()",
}


def measure(code: str) -> tuple[float, float]:
    """Processor and wall seconds of a fresh interpreter."""
    begun = time.perf_counter()
    # Leaving at once: the services do so too, and taking torch apart takes time.
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}\nimport os; os._exit(0)"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"ended with code {process.returncode}: {code}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - begun


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="starts of each program, after one that isn't counted")
    parser.add_argument("--quick", action="store_true", help="one start of each")
    parser.add_argument("--threads", type=int, default=1, help="of each program")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    args = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    found: dict[str, dict[str, float]] = {}
    runs = 1 if args.quick else args.runs
    from argosy.modeling.tiny import save_tiny_model

    print("| program | processor s | wall s |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        model = str(save_tiny_model(Path(folder) / "model"))
        for name, template in PROGRAMS.items():
            code = template.format(model=model) if template.startswith(_HEAD) else template
            if not args.quick:
                measure(code)
            cpu, wall = zip(*(measure(code) for _ in range(runs)), strict=True)
            found[name] = {"cpu_s": statistics.median(cpu), "wall_s": statistics.median(wall)}
            print(f"| {name} | {found[name]['cpu_s']:.2f} | {found[name]['wall_s']:.2f} |", flush=True)
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
