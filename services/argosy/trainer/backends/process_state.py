"""What every backend says and keeps of its process: memory, and random states."""

from __future__ import annotations

from collections.abc import Mapping

import psutil
import torch
from torch import Tensor, nn

from argosy.modeling.memory import peak_memory_bytes, return_freed_memory


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


def leave_device(module: nn.Module | None, optimizer: torch.optim.Optimizer | None, device: torch.device) -> None:
    """Move what is given (parameters, buffers, gradients; optimizer state) to main memory, and give freed memory back.

    On a CPU they are there already, and what comes free is memory that the allocator kept for reuse.
    """
    if device.type != "cpu":
        _move(module, optimizer, torch.device("cpu"))
        torch.cuda.empty_cache()
    return_freed_memory()


def return_to_device(module: nn.Module | None, optimizer: torch.optim.Optimizer | None, device: torch.device) -> None:
    """Undo `leave_device`."""
    if device.type != "cpu":
        _move(module, optimizer, device)


def _move(module: nn.Module | None, optimizer: torch.optim.Optimizer | None, target: torch.device) -> None:
    if module is not None:
        module.to(target)
    for parameter, state in optimizer.state.items() if optimizer is not None else ():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:  # step counts stay where they are
                state[name] = value.to(target)
