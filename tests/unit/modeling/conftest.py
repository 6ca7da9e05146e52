from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from argosy.modeling.loading import ModelSource, load_causal_lm
from argosy.modeling.packed_model import PackedModel
from argosy.modeling.tiny import save_tiny_model
from argosy.types.ragged import Ragged

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", weight_scale=4.0)


@pytest.fixture(scope="session")
def tiny_model(tiny_folder: Path) -> PackedModel:
    return PackedModel(load_causal_lm(ModelSource(str(tiny_folder), device="cpu")), chunk_tokens=7)


@pytest.fixture(scope="session")
def group_of_sequences() -> tuple[Ragged, Ragged]:
    """Three prompts, two of them with several responses, one of which is empty."""
    rng = np.random.default_rng(1)
    first, second, third = (rng.integers(3, 250, count).tolist() for count in (9, 4, 1))
    prompts = [first, second, first, first, third, second]
    responses: list[Any] = [rng.integers(3, 250, count).tolist() for count in (5, 17, 1, 12, 30, 0)]
    return Ragged.from_rows(prompts, np.int32), Ragged.from_rows(responses, np.int32)
