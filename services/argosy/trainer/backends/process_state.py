"""What every backend says and keeps of its process: memory, and random states."""

from __future__ import annotations

from collections.abc import Mapping

import psutil
import torch
from torch import Tensor

from argosy.modeling.memory import peak_memory_bytes


def memory_metrics(device: torch.device) -> dict[str, float]:
    """Gigabytes (10⁹): of this process now and at its peak, and the GPU's peak where there is one."""
    found = {
        "perf/cpu_memory_used_gb": psutil.Process().memory_info().rss / 1e9,
        "perf/max_cpu_memory_used_gb": peak_memory_bytes() / 1e9,
    }
    if device.type == "cuda":
        found["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
    return found


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """Random states as `BackendState.rng` has them."""
    found = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def restore_rng(rng: Mapping[str, Tensor], device: torch.device) -> None:
    """Set the random states that are given; those that aren't stay (a rank that was given no state)."""
    if "cpu" in rng:
        torch.set_rng_state(rng["cpu"])
    if "cuda" in rng and device.type == "cuda":
        torch.cuda.set_rng_state(rng["cuda"], device)
