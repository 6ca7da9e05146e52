"""What a Hugging Face model folder holds, read from its headers: no torch, and no weights in memory."""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy.types.errors import InvalidInputError

_DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What `argosy model show` prints."""

    path: str
    architecture: str
    parameter_count: int
    """Numbers stored; a tied output embedding is stored and counted once."""
    dtypes: dict[str, int]
    """Parameters of each dtype."""
    size_bytes: int
    tied: bool
    vocab_size: int
    hidden_size: int
    layer_count: int
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    has_tokenizer: bool
    has_chat_template: bool
    quantized: bool


def describe_model(folder: Path) -> ModelDescription:
    """Read config, weight headers and tokenizer files. Raises InvalidInputError: what is missing or broken."""
    if not folder.is_dir():
        raise InvalidInputError(f"there is no model folder {folder}")
    config = _json(folder / "config.json")
    files = weight_files(folder)
    shapes = [entry for file in files for entry in _header(file)]
    counts: Counter[str] = Counter()
    for dtype, shape in shapes:
        size = 1
        for extent in shape:
            size *= extent
        counts[_DTYPES.get(dtype, dtype.lower())] += size
    generation = folder / "generation_config.json"
    eos = (_json(generation) if generation.is_file() else {}).get("eos_token_id", config.get("eos_token_id"))
    text_config = config.get("text_config") or config
    return ModelDescription(
        path=str(folder),
        architecture=", ".join(config.get("architectures") or [str(config.get("model_type"))]),
        parameter_count=sum(counts.values()),
        dtypes=dict(counts),
        size_bytes=sum(file.stat().st_size for file in files),
        tied=bool(config.get("tie_word_embeddings", text_config.get("tie_word_embeddings", False))),
        vocab_size=int(text_config.get("vocab_size", 0)),
        hidden_size=int(text_config.get("hidden_size", 0)),
        layer_count=int(text_config.get("num_hidden_layers", 0)),
        max_position_embeddings=int(text_config.get("max_position_embeddings", 0)),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),),
        has_tokenizer=any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")),
        has_chat_template=_has_template(folder),
        quantized=bool(config.get("quantization_config")),
    )


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder. Raises InvalidInputError if there are none or some are missing."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(_json(index).get("weight_map", {}).values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise InvalidInputError(f"{folder} lacks {len(missing)} of its weight files, the first is {missing[0]}")
        return [folder / name for name in names]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InvalidInputError(f"{folder} holds no *.safetensors weights; save the model with `save_pretrained`")
    return files


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    config = folder / "tokenizer_config.json"
    return config.is_file() and bool(_json(config).get("chat_template"))


def _header(file: Path) -> list[tuple[str, list[int]]]:
    """(dtype, shape) of each tensor: a safetensors file starts with the length of its JSON header, then the header."""
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEADER_BYTES + 1
        if length > _MAX_HEADER_BYTES:
            raise InvalidInputError(f"{file} is not a safetensors file")
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise InvalidInputError(f"{file} has a broken header: {error}") from error
    end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    if file.stat().st_size != 8 + length + end:
        raise InvalidInputError(f"{file} is cut short: {file.stat().st_size} bytes instead of {8 + length + end}")
    return [(entry["dtype"], entry["shape"]) for name, entry in header.items() if name != "__metadata__"]


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise InvalidInputError(f"{file.parent} has no {file.name}: it is not a Hugging Face model folder")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInputError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidInputError(f"{file} must hold a JSON object")
    return content
