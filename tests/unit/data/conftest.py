from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from argosy.controller.data import PromptOptions, PromptSource, build_prompts
from argosy.modeling.tiny import save_byte_tokenizer
from argosy.text import TextTokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byte-tokenizer")
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> TextTokenizer:
    return load_tokenizer(tokenizer_folder)


@pytest.fixture(scope="session")
def plus_twelve(tokenizer_folder: Path) -> TextTokenizer:
    """Its template adds exactly 12 tokens to the bytes of a message, and the tools as JSON."""
    template = "<|im_start|>user\n{{ messages[0]['content'] }}{{ tools | tojson if tools }}<|im_end|>tail!"
    return load_tokenizer(tokenizer_folder, chat_template=template)


@pytest.fixture
def row() -> Callable[..., dict[str, Any]]:
    """row(index, content=…, **columns): a row in verl's schema."""

    def make(index: int, content: str | None = None, **columns: Any) -> dict[str, Any]:
        return {
            "data_source": "toy",
            "prompt": [{"role": "user", "content": f"q{index}" if content is None else content}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(index)},
            "extra_info": {"split": "train", "index": index},
            **columns,
        }

    return make


@pytest.fixture
def load(tmp_path: Path, tokenizer: TextTokenizer) -> Callable[..., PromptSource]:
    """load(rows, **options): the rows, written as JSON lines, made into prompts."""

    def make(rows: Iterable[Mapping[str, Any]], *, using: TextTokenizer | None = None, **options: Any) -> PromptSource:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
        return build_prompts(PromptOptions(files=(str(path),), **options), using or tokenizer)

    return make
