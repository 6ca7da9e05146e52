"""Do LoRA and the optimizers fit the backend that trains?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from argosy.config.schema import Config
from argosy.config.validate.parallel import actor_backend

_MODEL = "actor_rollout_ref.model"
_HEADER_LIMIT = 100_000_000
"""Bytes; the format's own."""
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def check_lora(config: Config) -> Iterator[str]:
    """What an adapter doesn't go with, and its settings while there is none."""
    model = config.actor_rollout_ref.model
    if not model.uses_lora:
        named = [name for name in ("target_modules", "exclude_modules") if getattr(model, name) != _default(name)]
        if named:
            yield (
                f"{_MODEL}.{named[0]}: got {list(getattr(model, named[0]))} with {_MODEL}.lora_rank=0, which trains "
                "all weights; set lora_rank ≥ 1"
            )
        return
    if not model.target_modules:
        yield f"{_MODEL}.target_modules: got [], wants names of layers, or all-linear"
    tensor = config.argosy.trainer.tensor_parallel_size
    if tensor > 1:
        yield (
            f"{_MODEL}.lora_rank: got {model.lora_rank} with argosy.trainer.tensor_parallel_size={tensor}; LoRA layers "
            "aren't divided over tensor ranks: set tensor_parallel_size=1"
        )
    if actor_backend(config) == "megatron" and model.lora_rank == 0:
        yield (
            f"{_MODEL}.lora_adapter_path: got {model.lora_adapter_path!r} with the megatron backend, which has no "
            "LoRA; actor_rollout_ref.actor.strategy=fsdp2 has both"
        )


def check_8bit(config: Config) -> Iterator[str]:
    """8-bit moments are of parameters that are whole in one process."""
    ranks = config.trainer.n_gpus_per_node
    optims = [("actor_rollout_ref.actor", config.actor_rollout_ref.actor.optim)]
    optims += [("critic", config.critic.optim)] if config.needs_critic else []
    for section, optim in optims:
        if optim.kind[0] == "AdamW8bit" and (ranks > 1 or actor_backend(config) == "megatron"):
            yield (
                f"{section}.optim.optimizer: got AdamW8bit with trainer.n_gpus_per_node={ranks} and the backend "
                f"{actor_backend(config)}; it works in one process: set AdamW, or {section}.fsdp_config."
                "optimizer_offload=true to save that memory on the GPU"
            )


def check_adapter_files(config: Config) -> Iterator[str]:
    """The adapter to start from is there, in a format that isn't pickle."""
    path = config.actor_rollout_ref.model.lora_adapter_path
    if path is None:
        return
    missing = [name for name in _ADAPTER_FILES if not (Path(path).expanduser() / name).is_file()]
    if missing:
        yield f"{_MODEL}.lora_adapter_path: the folder {path} lacks {', '.join(missing)}: it isn't a LoRA adapter"


def check_target_modules(config: Config) -> Iterator[str]:
    """Some layer of the model has a name that LoRA shall adapt. A model on the hub is looked at when it is loaded."""
    model = config.actor_rollout_ref.model
    targets = model.target_modules
    if not model.uses_lora or not targets or targets == ("all-linear",):
        return
    # As for the trainer: one text with other characters than a name's is a regular expression.
    is_pattern = len(targets) == 1 and not re.fullmatch(r"[\w.]+", targets[0])
    try:
        pattern = re.compile(targets[0] if is_pattern else r"(.*\.)?(" + "|".join(map(re.escape, targets)) + ")")
    except re.error as error:
        yield f"{_MODEL}.target_modules: got {targets[0]!r}, which is no regular expression: {error}"
        return
    layers = _layers(Path(model.path).expanduser())
    if layers and not any(pattern.fullmatch(name) or pattern.fullmatch(f"model.{name}") for name in layers):
        known = sorted({name.rpartition(".")[2] for name in layers})
        yield (
            f"{_MODEL}.target_modules: got {list(targets)}, which names no layer of "
            f"{model.path}; it has {', '.join(known)} (or say all-linear)"
        )


def _layers(folder: Path) -> set[str]:
    """Names of what has a weight, from the headers of a folder's safetensors; empty where one can't be read.

    A header is JSON after its length of 8 bytes; read here, since a controller needn't have the library.
    """
    found: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                names: Any = json.loads(file.read(length)) if length <= _HEADER_LIMIT else ()
        except (OSError, ValueError):
            return set()  # said, with the file's name, by those who load it
        found |= {name.removesuffix(".weight") for name in names if name.endswith(".weight")}
    return found


def _default(name: str) -> object:
    return getattr(type(Config().actor_rollout_ref.model)(), name)
