from __future__ import annotations

from pathlib import Path

import pytest

from argosy.modeling.tiny import save_byte_tokenizer
from argosy.text import TextTokenizer, load_tokenizer


@pytest.fixture(scope="session")
def byte_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byte-tokenizer")
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(byte_folder: Path) -> TextTokenizer:
    return load_tokenizer(byte_folder)
