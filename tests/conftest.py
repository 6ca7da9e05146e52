"""Shared by all tests: one thread per process (two run side by side), no hub, no tracker accounts."""

from __future__ import annotations

import os

import pytest

from argosy.weightsync.native.library import load_library

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile what weights are moved with before any test: on a fresh machine it takes longer than some deadlines."""
    if not hasattr(session.config, "workerinput"):  # once, not in each worker of xdist
        load_library()
