"""The same numbers from the same inputs, run after run."""

from __future__ import annotations


def use_repeatable_kernels() -> None:
    """Let PyTorch use only kernels that repeat their results, in this whole process; what has none raises RuntimeError.

    The number of threads has to stay the same as well: see `argosy.deterministic`.
    """
    import torch

    torch.use_deterministic_algorithms(True)
    # It would also overwrite every new tensor with NaN first; no result of ours depends on what it finds there.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
