from __future__ import annotations

import pytest
import torch

from argosy.types.records import WeightsManifest
from argosy.weightsync import Snapshot

State = dict[str, torch.Tensor]


@pytest.fixture
def state() -> State:
    """A tied "model": an embedding of more than one chunk, a bf16 matrix, a scalar, an empty tensor, the tied head."""
    generator = torch.Generator().manual_seed(3)
    embedding = torch.randn(700, 500, generator=generator)
    return {
        "embed.weight": embedding,
        "layer.weight": torch.randn(33, 7, generator=generator).to(torch.bfloat16),
        "layer.scale": torch.tensor(0.5),
        "layer.empty": torch.zeros(0, 4),
        "head.weight": embedding,
    }


@pytest.fixture
def snapshot(state: State) -> Snapshot:
    return Snapshot.freeze("main", 1, state, {"head.weight": "embed.weight"})


@pytest.fixture
def manifest(snapshot: Snapshot) -> WeightsManifest:
    return snapshot.manifest
