from __future__ import annotations

from pathlib import Path

import pytest

from argosy.controller.agents.template import TurnTemplate
from argosy.modeling.tiny import save_byte_tokenizer
from unit.controller.agents.scripted import template_of


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agents") / "tokenizer"
    path.mkdir()
    save_byte_tokenizer(path)
    return path


@pytest.fixture(scope="session")
def template(byte_tokenizer: Path) -> TurnTemplate:
    return template_of(byte_tokenizer)
