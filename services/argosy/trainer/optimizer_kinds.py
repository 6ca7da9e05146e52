"""Which optimizer steps: each kind makes PyTorch's object and says what of its state a checkpoint holds.

| optimizer | optimizer_impl     | state of a parameter                                            |
|-----------|--------------------|-----------------------------------------------------------------|
| AdamW     | torch.optim        | two float32 moments: 8 bytes an element                         |
| AdamW8bit | bitsandbytes.optim | two 8-bit moments with a scale per 256 elements: about 2 bytes  |
| AdamW8bit | torchao.optim      | the same; compiles its step once, which takes a C++ compiler    |

8-bit moments: Dettmers et al. 2021, arXiv:2110.02861. Tensors below 4096 elements keep float32 moments.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from argosy.trainer.options import OptimizerOptions
from argosy.types.errors import ConfigError

State = dict[str, Any]
"""What an optimizer keeps of one parameter."""

_EMBEDDING = re.compile(r"(^|\.)(embed\w*|wte|wpe|\w*_embeddings?)\.weight$")


@dataclass(frozen=True, slots=True)
class OptimizerKind:
    """One kind of optimizer."""

    make: Callable[[list[dict[str, Any]], Mapping[str, Any]], torch.optim.Optimizer]
    """Parameter groups and settings to the optimizer. Raises ConfigError if its library isn't installed."""
    settings: tuple[str, ...]
    """What override_optimizer_config may set."""
    pack: Callable[[State], dict[str, Tensor]]
    """A parameter's state as plain tensors (or DTensors) by name."""
    unpack: Callable[[dict[str, Tensor]], State]
    """And back."""
    full_precision: bool = True
    """Whether each moment is a tensor of the parameter's shape."""


def kind_of(options: OptimizerOptions) -> OptimizerKind:
    """The kind that the options name. Raises ConfigError on an unknown one or a setting that it doesn't have."""
    key = (options.optimizer, options.optimizer_impl)
    if key not in OPTIMIZERS:
        known = ", ".join(f"{name} of {impl}" for name, impl in OPTIMIZERS)
        raise ConfigError(f"unknown optimizer {key[0]} of {key[1]}; known: {known}")
    kind = OPTIMIZERS[key]
    unknown = sorted(set(options.override) - set(kind.settings))
    if unknown:
        raise ConfigError(
            f"override_optimizer_config: {key[0]} of {key[1]} has no setting {unknown[0]!r}; known: "
            f"{', '.join(kind.settings)}"
        )
    return kind


def make_optimizer(
    kind: OptimizerKind, parameters: Mapping[str, nn.Parameter], options: OptimizerOptions
) -> torch.optim.Optimizer:
    """The optimizer over the named parameters, in one group, or two with `no_decay_1d`."""
    if not kind.full_precision and any(isinstance(parameter, DTensor) for parameter in parameters.values()):
        raise ConfigError(
            f"{options.optimizer} of {options.optimizer_impl} works on parameters that are whole in one process; with "
            "several ranks use AdamW with fsdp_config.optimizer_offload"
        )
    settings = {
        "lr": options.schedule.peak,
        "betas": options.betas,
        "eps": options.eps,
        "weight_decay": options.weight_decay,
        **options.override,
    }
    if isinstance(settings["betas"], list):
        settings["betas"] = tuple(settings["betas"])
    groups: list[dict[str, Any]] = [{"params": list(parameters.values())}]
    if options.no_decay_1d:
        free = [parameter for name, parameter in parameters.items() if is_undecayed(name, parameter)]
        decayed = [parameter for name, parameter in parameters.items() if not is_undecayed(name, parameter)]
        groups = [{"params": decayed}] if decayed else []
        groups += [{"params": free, "weight_decay": 0.0}] if free else []
    return kind.make(groups, settings)


def is_undecayed(name: str, parameter: Tensor) -> bool:
    """Whether `no_decay_1d` leaves a parameter without decay: norms, biases and embeddings, by shape and name."""
    return parameter.ndim < 2 or _EMBEDDING.search(name) is not None


# AdamW


def _torch_adamw(groups: list[dict[str, Any]], settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    fused = settings.get("foreach") is not True
    return torch.optim.AdamW(groups, **{"fused": fused, **settings})


def _pack_plain(state: State) -> dict[str, Tensor]:
    return {key: value.detach() for key, value in state.items()}


def _unpack_plain(tensors: dict[str, Tensor]) -> State:
    return dict(tensors)


# AdamW8bit


def _library(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"optimizer_impl={module} needs {package}, which is not installed ({error}): pip install {package}"
        ) from error


def _bitsandbytes_adamw(groups: list[dict[str, Any]], settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = _library("bitsandbytes.optim", "bitsandbytes").AdamW8bit(groups, **settings)
    return optimizer


def _torchao_adamw(groups: list[dict[str, Any]], settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = _library("torchao.optim", "torchao").AdamW8bit(groups, **settings)
    return optimizer


def _pack_bitsandbytes(state: State) -> dict[str, Tensor]:
    """Its step count is a Python int."""
    return {key: value.detach() if isinstance(value, Tensor) else torch.tensor(value) for key, value in state.items()}


def _unpack_bitsandbytes(tensors: dict[str, Tensor]) -> State:
    return {key: int(value) if key == "step" else value for key, value in tensors.items()}


def _pack_torchao(state: State) -> dict[str, Tensor]:
    """An 8-bit moment is a tensor subclass of three tensors."""
    packed: dict[str, Tensor] = {}
    for key, value in state.items():
        parts, _ = value.__tensor_flatten__() if hasattr(value, "__tensor_flatten__") else ([], None)
        packed |= {f"{key}.{part}": getattr(value, part).detach() for part in parts} or {key: value.detach()}
    return packed


def _unpack_torchao(tensors: dict[str, Tensor]) -> State:
    quantized = _library("torchao.optim.subclass_8bit", "torchao").OptimState8bit
    state: State = {}
    for key, value in tensors.items():
        moment, _, part = key.partition(".")
        if not part:
            state[moment] = value
        elif part == "codes":
            signed = moment == "exp_avg"  # the second moment has no sign
            state[moment] = quantized(value, tensors[f"{moment}.scale"], tensors[f"{moment}.qmap"], signed)
    return state


_ADAM = ("betas", "eps", "weight_decay")

OPTIMIZERS: dict[tuple[str, str], OptimizerKind] = {
    ("AdamW", "torch.optim"): OptimizerKind(
        _torch_adamw, (*_ADAM, "amsgrad", "fused", "foreach"), _pack_plain, _unpack_plain
    ),
    ("AdamW8bit", "bitsandbytes.optim"): OptimizerKind(
        _bitsandbytes_adamw, (*_ADAM, "min_8bit_size"), _pack_bitsandbytes, _unpack_bitsandbytes, full_precision=False
    ),
    ("AdamW8bit", "torchao.optim"): OptimizerKind(
        _torchao_adamw, (*_ADAM, "block_size"), _pack_torchao, _unpack_torchao, full_precision=False
    ),
}
"""(optim.optimizer, optim.optimizer_impl) → kind."""
