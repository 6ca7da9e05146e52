"""Tiny random scoring models as Hugging Face folders, made in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from argosy.modeling.tiny import save_byte_tokenizer
from argosy.types.ids import SampleId
from argosy.types.records import ScoreRequest


def save_tiny_scorer(
    path: Path, *, labels: int = 1, kind: str = "sequence", pad: int = 0, dtype: torch.dtype = torch.float32
) -> Path:
    """A Llama with a head. `kind`: "sequence", "token", or "bert" (an encoder that pools its first token). `pad`: the
    pad token's id in config.json; 2 is the end token's."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        BertConfig,
        LlamaConfig,
    )

    path.mkdir(parents=True, exist_ok=True)
    vocab_size = save_byte_tokenizer(path)
    common = {"vocab_size": vocab_size, "num_labels": labels, "pad_token_id": pad, "eos_token_id": 2}
    config: Any
    if kind == "bert":
        config = BertConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=256, **common,
        )  # fmt: skip
    else:
        config = LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=256, initializer_range=0.3, bos_token_id=1, **common,
        )  # fmt: skip
    auto = AutoModelForTokenClassification if kind == "token" else AutoModelForSequenceClassification
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = auto.from_config(config, dtype=dtype)
        model.save_pretrained(path)
    return path


def request(k: int, response: str, question: str = "2+2?", **fields: Any) -> ScoreRequest:
    """Sample k of one prompt."""
    given: dict[str, Any] = {
        "data_source": "toy", "prompt_text": question, "ground_truth": "4",
        "messages": ({"role": "user", "content": question},),
    }  # fmt: skip
    return ScoreRequest(SampleId(0, 0, k), response_text=response, **(given | fields))
