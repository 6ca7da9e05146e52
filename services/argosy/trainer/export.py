"""The trained model as an ordinary Hugging Face folder, with the tokenizer and chat template that it came with."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from argosy.modeling.loading import local_or_hub
from argosy.trainer.files import sync_file, sync_folder
from argosy.types.errors import storage_error

if TYPE_CHECKING:
    from torch import Tensor

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
)
"""Copied byte for byte: loading and saving a tokenizer could change it."""


DEFAULT_SHARD_SIZE = "5GB"
"""Largest weights file."""


class GatheredExport:
    """The files of a model whose weights are elsewhere: spread over ranks, and gathered for this."""

    def __init__(self, model: Any, weights: Mapping[str, Tensor], tied: Mapping[str, str]) -> None:
        self._model = model
        self._weights = {**weights, **{name: weights[owner] for name, owner in tied.items()}}

    def save_pretrained(self, folder: str | Path, **settings: Any) -> None:
        """As transformers' method."""
        self._model.save_pretrained(folder, state_dict=self._weights, **settings)


def export_hf(
    model: Any,
    source: str,
    folder: Path,
    chat_template: str | None = None,
    *,
    max_shard_size: str = DEFAULT_SHARD_SIZE,
) -> list[str]:
    """Write config, generation config, weights and tokenizer; returns the files' relative names.

    The folder is built beside its place and moved there whole. An older export is moved aside just before that and
    removed after it: a kill between the two renames leaves it as `.NAME.old`, and a failure puts it back.

    Args:
        model: A transformers PreTrainedModel, or what has its `save_pretrained`.
        source: Folder or hub name that the tokenizer was loaded from (usually the model's own).
        folder: Where to.
        chat_template: Jinja source that the run used in place of the tokenizer's own.
        max_shard_size: Of one safetensors file, such as "500MB"; more weights go into several, with an index.

    Raises:
        StorageError: the disk is full, or the place can't be written.
    """
    from safetensors import SafetensorError

    try:
        return _export(model, source, folder, chat_template, max_shard_size)
    except (OSError, SafetensorError) as error:
        raise storage_error(error, folder) from error


def _export(model: Any, source: str, folder: Path, chat_template: str | None, max_shard_size: str) -> list[str]:
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        model.save_pretrained(partial, max_shard_size=max_shard_size)
        for path in tokenizer_files(source):
            shutil.copyfile(path, partial / path.name)
        if chat_template is not None:
            (partial / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
        names = sorted(str(path.relative_to(partial)) for path in partial.rglob("*") if path.is_file())
        for name in names:
            sync_file(partial / name)
        _replace(folder, partial)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sync_folder(folder.parent)
    return names


def _replace(folder: Path, new: Path) -> None:
    """Move `new` to `folder`'s place. There is no rename over a folder that holds files, so it takes two."""
    old = folder.with_name(f".{folder.name}.old")
    if not folder.exists():
        new.rename(folder)
    else:
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            old.rename(folder)
            raise
    shutil.rmtree(old, ignore_errors=True)


def tokenizer_files(source: str) -> list[Path]:
    """The tokenizer's files of a model folder, or of a hub model in the local cache."""
    folder = Path(local_or_hub(source))
    if folder.is_dir():
        return [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    from huggingface_hub import try_to_load_from_cache

    cached = [try_to_load_from_cache(source, name) for name in TOKENIZER_FILES]
    return [Path(path) for path in cached if isinstance(path, str)]
