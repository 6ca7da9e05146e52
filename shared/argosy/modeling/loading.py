"""Hugging Face causal language models, from a folder or by hub name, ready for packed forward passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from argosy.modeling.attention import PACKED_ATTENTION, register_packed_attention
from argosy.types.errors import InvalidInputError

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
"""Names that the configuration may use."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Which model, and how to hold it."""

    path: str
    """A folder with config.json and weights, or a hub name such as "org/model"."""
    dtype: str = "float32"
    """Of the parameters."""
    device: str = "auto"
    """"auto" takes a GPU if there is one."""
    trust_remote_code: bool = False
    override_config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of config.json to replace."""


def resolve_device(name: str) -> torch.device:
    """The named device. Raises InvalidInputError if PyTorch can't use it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        first_line = str(error).splitlines()[0]
        raise InvalidInputError(f"device {name!r} can't be used here: {first_line}") from error
    return device


def resolve_dtype(name: str) -> torch.dtype:
    """The named floating dtype. Raises InvalidInputError on an unknown one."""
    if name not in DTYPES:
        raise InvalidInputError(f"unknown dtype {name!r}; known: {', '.join(DTYPES)}")
    return DTYPES[name]


def load_causal_lm(source: ModelSource) -> Any:
    """Load a causal LM in eval mode (no dropout: case B10) with packed attention, on its device.

    Returns:
        A transformers PreTrainedModel. Forward passes give `packed_layout`, `position_ids` and use_cache=False.

    Raises InvalidInputError as `load_plain`.
    """
    register_packed_attention()
    return _without_dropout(load_plain(source, attn_implementation=PACKED_ATTENTION))


def load_base(source: ModelSource) -> tuple[Any, frozenset[str]]:
    """Load the transformer below the head, else as `load_causal_lm`.

    Returns:
        A transformers PreTrainedModel such as a LlamaModel, and the names of the stored tensors that it has no place
        for: those of the head.

    Raises InvalidInputError as `load_plain`.
    """
    register_packed_attention()
    model, info = _load(source, "AutoModel", attn_implementation=PACKED_ATTENTION)
    return _without_dropout(model), frozenset(map(str, info.get("unexpected_keys") or ()))


def load_plain(source: ModelSource, **settings: Any) -> Any:
    """Load a causal LM in eval mode on its device, every weight from its files. `settings` go to `from_pretrained`.

    Raises:
        InvalidInputError: no such folder, no config.json or weights in it, weights that don't fit, or a hub name that
            can't be fetched; an unknown dtype or a device that can't be used.
    """
    return _load(source, "AutoModelForCausalLM", **settings)[0]


def load_with_head(source: ModelSource, kind: str) -> Any:
    """Load by another of transformers' auto classes ("AutoModelForSequenceClassification" …), else as `load_plain`.

    Every weight must be in the files: a head that would be made up at random is refused.
    """
    return _without_dropout(_load(source, kind)[0])


def _load(source: ModelSource, kind: str, **settings: Any) -> tuple[Any, Mapping[str, Any]]:
    """The model, and what transformers found out while loading. `kind`: a class of transformers."""
    import transformers
    from safetensors import SafetensorError
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a service's log is a file
    check_model_path(source.path)
    dtype, device = resolve_dtype(source.dtype), resolve_device(source.device)
    overrides = {key: value for key, value in source.override_config.items() if key != "attn_implementation"}
    try:
        model, info = getattr(transformers, kind).from_pretrained(
            local_or_hub(source.path),
            dtype=dtype,
            trust_remote_code=source.trust_remote_code,
            output_loading_info=True,
            **overrides,
            **settings,
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise InvalidInputError(f"model {source.path!r} can't be loaded: {error}") from error
    _check_complete(source.path, info)
    return model.eval().to(device), info


def local_or_hub(path: str) -> str:
    """The path with `~` expanded where it is a folder, else the name as given."""
    folder = Path(path).expanduser()
    return str(folder) if folder.is_dir() else path


def check_model_path(path: str) -> None:
    """Refuse what can't be a model before transformers gives a puzzling error. A plain "org/name" passes."""
    folder = Path(path).expanduser()
    if not path:
        raise InvalidInputError("actor_rollout_ref.model.path is empty: give a model folder or a hub name")
    if folder.is_file():
        raise InvalidInputError(f"model path {path!r} is a file; give the folder with config.json and the weights")
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InvalidInputError(f"model folder {path!r} has no config.json: it is not a Hugging Face model folder")
        if not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
            raise InvalidInputError(f"model folder {path!r} has no weights (*.safetensors or pytorch_model*.bin)")
        return
    if path.startswith(("/", ".", "~")) or path.count("/") > 1:
        raise InvalidInputError(f"model folder {path!r} does not exist")


def _check_complete(path: str, info: Mapping[str, Any]) -> None:
    """Transformers fills absent weights at random and only warns; training from noise must not look like a start."""
    missing = sorted(map(str, info.get("missing_keys") or ()))
    misshapen = sorted(str(item[0]) for item in info.get("mismatched_keys") or ())
    faults = [f"{name} is missing" for name in missing] + [f"{name} has another shape" for name in misshapen]
    if faults:
        raise InvalidInputError(
            f"the weights of model {path!r} don't fit its config.json: {len(faults)} tensors, first {faults[0]}"
        )


def _without_dropout(model: Any) -> Any:
    """Zero every dropout rate: even where a layer is put in train mode (gradient checkpointing), nothing is dropped."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "activation_dropout", "hidden_dropout", "layerdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model
