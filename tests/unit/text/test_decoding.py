"""Decoding without transformers: the same text, and only where tokenizer.json says all."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from argosy.modeling.tiny import save_byte_tokenizer
from argosy.text.decoding import decoder_of
from argosy.text.tokenizer import load_tokenizer

LIGHT = (
    "import sys; from argosy.text.decoding import decoder_of; decoder_of(sys.argv[1]); "
    "print('transformers' in sys.modules)"
)


def needs_transformers(folder: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", LIGHT, str(folder)], check=True, capture_output=True, text=True, timeout=120
    ).stdout.strip()


def test_it_says_what_the_tokenizer_says(tmp_path: Path) -> None:
    size = save_byte_tokenizer(tmp_path)
    decode, tokenizer = decoder_of(tmp_path), load_tokenizer(tmp_path)
    draw = random.Random(0)
    for length in range(60):
        ids = [draw.randrange(size) for _ in range(length)]  # special tokens and broken UTF-8 among them
        assert decode(ids) == tokenizer.decode(ids)
    words = tokenizer.encode_rendered("  Grüße , don't \n tidy . 你好")
    assert decode(words) == tokenizer.decode(words) == "  Grüße , don't \n tidy . 你好"
    assert needs_transformers(tmp_path) == "False"


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("tokenizer_config.json", {"eos_token": "<|end|>"}),
        ("tokenizer_config.json", {"eos_token": {"__type": "AddedToken", "content": "<|end|>", "special": True}}),
        ("tokenizer_config.json", {"additional_special_tokens": ["<|tool|>"]}),
        ("tokenizer_config.json", {"extra_special_tokens": {"image_token": "<|image|>"}}),
        ("special_tokens_map.json", {"pad_token": "<|nothing|>"}),
    ],
)
def test_a_token_that_transformers_would_add_is_decoded_as_it_does(
    tmp_path: Path, file: str, changed: dict[str, Any]
) -> None:
    size = save_byte_tokenizer(tmp_path)
    path = tmp_path / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changed))
    ids = [size, *load_tokenizer(tmp_path).encode_rendered("a<|end|><|tool|>b")]
    assert decoder_of(tmp_path)(ids) == load_tokenizer(tmp_path).decode(ids)
    if changed.get("eos_token") == "<|end|>":
        assert needs_transformers(tmp_path) == "True"
