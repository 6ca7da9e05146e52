from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from argosy.modeling.tiny import save_tiny_model
from argosy.trainer.backends import make_backend
from argosy.trainer.core import Trainer
from support.training import options_for

torch.set_num_threads(1)

TrainerMaker = Callable[..., Trainer]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", weight_scale=3.0)


@pytest.fixture
def make_trainer(tiny_folder: Path) -> Iterator[TrainerMaker]:
    """Trainers over the tiny model, closed at the end."""
    made: list[Trainer] = []

    def make(folder: Path | None = None, **fields: object) -> Trainer:
        made.append(Trainer(options_for(folder or tiny_folder, **fields), make_backend))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()
