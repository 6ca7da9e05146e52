"""vLLM as an importable package, and the environment that its processes inherit."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from argosy.types.errors import ConfigError

_QUIET = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""No statistics go to anybody; a service's log holds what matters."""
_SAFE = {
    # The service has threads (gRPC), which don't survive a fork.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Pinning threads to cores collapses where several services share them.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The other one has a sampler that our noise doesn't fit (noise.py).
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}


def require_vllm() -> None:
    """Raise ConfigError, with the way out, where this interpreter has no vLLM."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name=vllm, but {sys.executable} has no vllm: set argosy.services.rollout."
            "python to an interpreter that has vllm and argosy (.venvs/engines/bin/python after `make install-engines`)"
        )


def prepare_environment(model_path: str, threads: int) -> None:
    """Set what vLLM reads from the environment, here and in its workers; what the user has set stays.

    Args:
        model_path: A folder needs no model hub.
        threads: OpenMP threads of a worker; 0 leaves them alone.
    """
    chosen = _QUIET | _SAFE
    if Path(model_path).expanduser().is_dir():
        chosen["HF_HUB_OFFLINE"] = "1"
    for name, value in chosen.items():
        os.environ.setdefault(name, value)
    if threads > 0:
        os.environ["OMP_NUM_THREADS"] = str(threads)


def compile_nothing() -> None:
    """Have the workers compile not even small helpers, which takes the first request 5 … 25 seconds on CPUs."""
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
