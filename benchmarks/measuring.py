"""What the benchmarks share: memory of processes, batches to compute on, a trainer built in one line."""

from __future__ import annotations

import argparse
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_MODEL = "models/smollm2-135m-instruct"
"""Where `make demo` puts it (`argosy model import`)."""


def model_of(args: argparse.Namespace, folder: Path) -> str:
    """What `--model` names; with `--quick` alone a tiny random model, which is written into `folder`."""
    if not args.quick or args.model != DEFAULT_MODEL:
        return str(args.model)
    from argosy.modeling.tiny import save_tiny_model

    return str(save_tiny_model(folder / "model"))


def current_bytes() -> int:
    """Resident memory of this process now."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """Most resident memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def forget_peak() -> None:
    """Let the peak of this process (`peak_of`) begin anew. Linux only."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_of(pid: int) -> int:
    """Most resident memory that a process has had (VmHWM), since its start or `forget_peak`. Linux only."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # a zombie has none


def best_seconds(call: Callable[[], object], repeats: int) -> float:
    """Least wall time of several calls, after one that isn't counted."""
    call()
    found = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return min(found)


@dataclass
class FamilyWatch:
    """Peak memory (VmHWM) of every process below one, by command, polled until `stop`. Linux only."""

    root: int
    interval_s: float = 0.2
    peaks: dict[tuple[int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        import psutil

        while not self._done.wait(self.interval_s):
            try:
                family = [psutil.Process(self.root), *psutil.Process(self.root).children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            for process in family:
                try:
                    name, peak = " ".join(process.cmdline()), peak_of(process.pid)
                except (psutil.Error, OSError):
                    continue  # it has just ended
                if name and peak:
                    self.peaks[process.pid, name] = peak

    def stop(self) -> dict[str, int]:
        """The peaks by command line; of equal ones the largest."""
        self._done.set()
        self._thread.join()
        found: dict[str, int] = {}
        for (_, name), peak in self.peaks.items():
            found[name] = max(peak, found.get(name, 0))
        return found


def make_batch(groups: Sequence[tuple[int, Sequence[int]]], vocabulary: int, seed: int = 0) -> Any:
    """A TrajectoryBatch of random ids with advantages: per group the prompt's length and those of its responses."""
    import numpy as np

    from argosy.types.batch import TrajectoryBatch
    from argosy.types.ids import SampleId
    from argosy.types.ragged import Ragged

    draw = np.random.default_rng(seed)
    ids, prompts, responses = [], [], []
    for position, (prompt_length, lengths) in enumerate(groups):
        prompt = draw.integers(3, vocabulary, prompt_length).tolist()
        for k, length in enumerate(lengths):
            ids.append(SampleId(0, position, k))
            prompts.append(prompt)
            responses.append(draw.integers(3, vocabulary, length).tolist())
    advantages = [[float(draw.normal())] * len(row) for row in responses]
    return TrajectoryBatch.build(
        ids,
        prompts,
        responses,
        [[1] * len(row) for row in responses],
        advantages=Ragged.from_rows(advantages, np.float32),
    )


def trainer_options(model: str, **fields: Any) -> Any:
    """TrainerOptions on the CPU; `fields` as the class has them, `max_tokens` for both micro-batch limits."""
    from argosy.modeling.loading import ModelSource
    from argosy.modeling.microbatch import MicroBatchLimit
    from argosy.trainer.options import TrainerOptions

    limit = MicroBatchLimit(max_tokens=fields.pop("max_tokens", 1 << 20))
    source = ModelSource(model, device="cpu")
    return TrainerOptions(source, update_limit=limit, log_prob_limit=limit, **fields)


def progress(text: str) -> None:
    """One line on stderr: what begins now. Results go to stdout."""
    print(f"… {text}", file=sys.stderr, flush=True)


def matmul_rate(dtype: Any, size: int, repeats: int = 5) -> float:
    """FLOP/s of one big square matrix product on this machine, now."""
    import torch

    left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
    return 2 * size**3 / best_seconds(lambda: left @ right, repeats)
