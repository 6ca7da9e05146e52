"""Weight sync on GPUs: NCCL beside the other transports, and a run whose rollout is vLLM, with its parity check.

    python benchmarks/gpu/weightsync.py --config examples/demo/config.yaml --rollout-python .venvs/engines/bin/python

Needs a GPU, and says so where there is none. NCCL takes one GPU for each end of a pair (the sender's and each
receiver's): with one GPU that part is left out. The run trains two steps with vLLM as rollout and the parity gate on,
so that a version that does not arrive whole ends it. Results go to a JSON file beside docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

RESULTS = ROOT / "docs" / "benchmarks-gpu-weightsync.json"
KEPT = ("sync/", "training/rollout_probs_diff", "timing_s/update_weights", "training/global_step")
"""Metrics of the run that go into the results."""


def transports(sizes_mb: list[float], repeat: int) -> list[dict[str, Any]]:
    """Every transport between processes with a GPU each; NCCL among them."""
    import weightsync

    counts = list(range(1, min(4, torch.cuda.device_count() - 1) + 1))
    if not counts:
        print("one GPU: NCCL needs two, and is left out; the other transports are as on a CPU", flush=True)
        return []
    names = ["shared_memory", "collective", "stream"]
    rows = []
    for size_mb in sizes_mb:
        rows += weightsync.measure(size_mb, counts, repeat, names, backend="nccl")
    return rows


def run(config: Path, rollout_python: str, transport: str) -> list[dict[str, Any]]:
    """Metrics of each step of a short run with vLLM. CalledProcessError if it fails, at the parity check too."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "argosy.cli.main", "train", "--config", str(config)]
        command += [
            f"trainer.default_local_dir={folder}/run",
            "trainer.total_training_steps=2",
            "argosy.export_hf=false",
            "actor_rollout_ref.rollout.name=vllm",
            f"argosy.services.rollout.python={rollout_python}",
            "argosy.parity.enabled=true",
            f"argosy.weight_sync.transport={transport}",
        ]
        subprocess.run(command, check=True, cwd=ROOT)
        lines = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [{name: value for name, value in row.items() if name.startswith(KEPT)} for row in rows]


def main() -> int:
    """Parse the arguments, measure, write the results; 1 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=float, nargs="+", default=[270.0, 1000.0, 4000.0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--config", type=Path, help="of a run, such as examples/demo/config.yaml; none: no vLLM")
    parser.add_argument("--rollout-python", default=sys.executable, help="interpreter that has vllm")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: nothing was measured (benchmarks/weightsync.py measures the CPU's transports)")
        return 1
    found: dict[str, Any] = {
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "torch": torch.__version__,
        "machine": platform.platform(),
        "transports": transports(arguments.size_mb, arguments.repeat),
    }
    if arguments.config is not None:
        ways = ["shared_memory"] + ["collective"] * (torch.cuda.device_count() > 1)
        found["vllm"] = {way: run(arguments.config, arguments.rollout_python, way) for way in ways}
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"written to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
