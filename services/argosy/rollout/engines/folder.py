"""What a model folder says of its tensors, read from headers: no torch, and no weights in memory."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy.types.errors import InvalidInputError
from argosy.types.records import TensorSpec
from argosy.weightsync.crc import to_hex
from argosy.weightsync.manifest import TensorShape

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
    "I64": "int64",
    "I32": "int32",
    "I8": "int8",
    "U8": "uint8",
}
"""safetensors' names of the dtypes that a manifest may name."""
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_READ_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a tensor's bytes lie."""

    file: Path
    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: str


class ModelFolder:
    """A Hugging Face model folder.

    Raises:
        InvalidInputError: it lacks config.json or safetensors files, or they can't be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.config = self._json("config.json", required=True)
        self._entries = dict(self._read_headers())
        if not self._entries:
            raise InvalidInputError(
                f"the model folder {self.path} has no safetensors files; the names and "
                "shapes of a model's tensors are read there"
            )

    @property
    def shapes(self) -> dict[str, TensorShape]:
        """Tensors by name."""
        return {name: TensorShape(entry.shape, entry.dtype) for name, entry in self._entries.items()}

    @property
    def tied(self) -> dict[str, str]:
        """Redundant name → owner: the output head of a model whose config ties it to the embedding."""
        text = self.config.get("text_config", {})
        tie = bool(self.config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
        return {_HEAD: _EMBEDDING} if tie and _EMBEDDING in self._entries else {}

    @property
    def vocab_size(self) -> int:
        """Rows of the output embedding."""
        for name in (_HEAD, _EMBEDDING):
            if name in self._entries:
                return self._entries[name].shape[0]
        return int(self._number("vocab_size", 0)) or self._missing("vocab_size")

    @property
    def context_len(self) -> int:
        """The model's own limit; practically none where the config doesn't say."""
        return int(self._number("max_position_embeddings", 1 << 30))

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Of generation_config.json and config.json, each a number, a list or nothing (case D9)."""
        found: set[int] = set()
        for content in (self._json("generation_config.json"), self.config, self.config.get("text_config", {})):
            value = content.get("eos_token_id")
            if value is not None:
                found.update([value] if isinstance(value, int) else value)
        return frozenset(token for token in found if 0 <= token < self.vocab_size)

    def specs(self) -> list[TensorSpec]:
        """Every owner with the checksum of its bytes: what the version of these files is named by."""
        return [
            TensorSpec(name, entry.shape, entry.dtype, to_hex(_checksum(entry)))
            for name, entry in self._entries.items()
            if name not in self.tied
        ]

    def _number(self, name: str, otherwise: int) -> int:
        value = self.config.get(name, self.config.get("text_config", {}).get(name))
        return otherwise if value is None else int(value)

    def _missing(self, name: str) -> int:
        raise InvalidInputError(f"{self.path / 'config.json'} has no {name}")

    def _json(self, name: str, *, required: bool = False) -> Mapping[str, Any]:
        file = self.path / name
        if not file.is_file():
            if required:
                raise InvalidInputError(f"{file} is missing: this engine needs a local model folder")
            return {}
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InvalidInputError(f"{file} is not valid JSON: {error}") from error
        return content if isinstance(content, dict) else {}

    def _read_headers(self) -> Iterator[tuple[str, _Entry]]:
        for file in sorted(self.path.glob("*.safetensors")):
            with file.open("rb") as stream:
                try:
                    (size,) = struct.unpack("<Q", stream.read(8))
                    header = json.loads(stream.read(size))
                except (struct.error, ValueError) as error:
                    raise InvalidInputError(f"{file} is not a safetensors file: {error}") from error
            header.pop("__metadata__", None)
            for name, told in header.items():
                if told["dtype"] not in DTYPES:
                    raise InvalidInputError(f"{file}: tensor {name!r} has dtype {told['dtype']}, which can't be sent")
                start, stop = (8 + size + offset for offset in told["data_offsets"])
                yield name, _Entry(file, start, stop, tuple(told["shape"]), DTYPES[told["dtype"]])


def _checksum(entry: _Entry) -> int:
    checksum, left = 0, entry.stop - entry.start
    with entry.file.open("rb") as stream:
        stream.seek(entry.start)
        while left > 0:
            data = stream.read(min(left, _READ_BYTES))
            if not data:
                raise InvalidInputError(f"{entry.file} is cut off")
            checksum = zlib.crc32(data, checksum)
            left -= len(data)
    return checksum
