"""Token ids to text, without transformers where a tokenizer is all in its tokenizer.json: a second less to start.

A rollout server only ever decodes. What `decoder_of` returns says the same as `TextTokenizer.decode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from argosy.text.tokenizer import json_object, load_tokenizer, names_its_class

Decoder = Callable[[Sequence[int]], str]
"""Token ids → text without special tokens. Safe to call from several threads."""


def decoder_of(path: str | Path, *, trust_remote_code: bool = False) -> Decoder:
    """The decoder of a Hugging Face folder or hub name; raises as `load_tokenizer`."""
    folder = Path(path).expanduser()
    if folder.is_dir() and not trust_remote_code and names_its_class(folder) and _stands_alone(folder):
        from tokenizers import Tokenizer

        backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return lambda ids: str(backend.decode(list(ids), skip_special_tokens=True))
    return load_tokenizer(path, trust_remote_code=trust_remote_code).decode


def _stands_alone(folder: Path) -> bool:
    """Whether tokenizer.json knows every special token that the files beside it name: transformers adds the others."""
    held = json_object(folder / "tokenizer.json").get("added_tokens") or []
    special = {token["content"] for token in held if token.get("special")}
    named: set[str] = set()
    for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        if (folder / name).is_file():
            content = json_object(folder / name)
            if name == "added_tokens.json" or "added_tokens_decoder" in content:
                return False  # of versions before 5: transformers merges those in, under rules of its own
            named.update(_names(content))
    return named <= special


def _names(content: Mapping[str, Any]) -> Iterator[str]:
    """Every special token that a tokenizer's settings name."""
    for key, value in content.items():
        if key.endswith(("_token", "_tokens")):
            for one in value.values() if isinstance(value, dict) and "content" not in value else _listed(value):
                text = one.get("content") if isinstance(one, dict) else one
                if isinstance(text, str):
                    yield text


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]
