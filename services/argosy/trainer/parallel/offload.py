"""What a GPU needn't hold all the time, kept in main memory: parameters, optimizer state, activations.

- `fsdp_config.param_offload`: shards of parameters and gradients, always. Each is copied as its layer is gathered, and
  the optimizer steps on the CPU (FSDP2's CPUOffloadPolicy), so that its state is there as well.
- `fsdp_config.optimizer_offload`: optimizer state, between steps.
- `model.enable_activation_offload`: large tensors that the backward pass needs, from forward to backward.

On a CPU everything is in main memory already: each says so in the log and does nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy
from torch.distributed.tensor import DTensor, Placement
from torch.multiprocessing.reductions import StorageWeakRef

logger = logging.getLogger(__name__)

ACTIVATION_THRESHOLD_BYTES = 1 << 20
"""Smaller activations stay: a copy has a fixed cost, and there is little to win."""


def parameter_policy(enabled: bool, device: torch.device) -> OffloadPolicy:
    """For `fully_shard`."""
    if enabled and _worthwhile(device, "param_offload", "weights"):
        return CPUOffloadPolicy(pin_memory=True)
    return OffloadPolicy()


def offload_optimizer(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Keep the optimizer's state in main memory between steps. Call once, before the first step."""
    if _worthwhile(device, "optimizer_offload", "optimizer state"):
        move_state_around_steps(optimizer, torch.device("cpu"))


def move_state_around_steps(optimizer: torch.optim.Optimizer, home: torch.device) -> None:
    """Bring the state to its parameters before each step and to `home` after it."""

    def fetch(*_: Any) -> None:
        _move_state(optimizer, lambda parameter: parameter.device)

    def put_away(*_: Any) -> None:
        _move_state(optimizer, lambda parameter: home)

    optimizer.register_step_pre_hook(fetch)
    optimizer.register_step_post_hook(put_away)


def _move_state(optimizer: torch.optim.Optimizer, target: Callable[[Tensor], torch.device]) -> None:
    """All state of one element per weight; step counts stay where AdamW wants them."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[name] = value.to(target(parameter))


def offload_activations(base: nn.Module, device: torch.device) -> None:
    """Let the forward of a transformer keep its large saved tensors in main memory.

    Goes well with gradient checkpointing, where only each layer's input is saved at all.
    """
    if _worthwhile(device, "enable_activation_offload", "activations"):
        install_activation_offload(base, ActivationOffload(device.type))


def install_activation_offload(base: nn.Module, offload: ActivationOffload) -> None:
    """Put each forward of `base` under `offload`."""
    entered: list[saved_tensors_hooks] = []

    def enter(*_: Any) -> None:
        entered.append(offload.hooks())
        entered[-1].__enter__()

    def leave(*_: Any) -> None:
        entered.pop().__exit__()

    base.register_forward_pre_hook(enter)
    base.register_forward_hook(leave, always_call=True)


class ActivationOffload:
    """Hooks that pack a saved tensor into main memory and unpack it in the backward pass.

    A tensor that several operations save (a norm's output, read by q, k and v) is copied once. Parameters are left
    alone: they live on anyway, or FSDP drops and gathers them.

    Args:
        device_type: Tensors on such devices are moved.
        threshold_bytes: Smaller ones stay.
    """

    def __init__(self, device_type: str, threshold_bytes: int = ACTIVATION_THRESHOLD_BYTES) -> None:
        self._device_type = device_type
        self._threshold = threshold_bytes
        self._copies: dict[_Key, tuple[StorageWeakRef, _Away]] = {}
        self.moved_bytes = 0
        """Since the start, each copy once."""

    def hooks(self) -> saved_tensors_hooks:
        """For one forward."""
        self._copies.clear()
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> Packed:
        if tensor.device.type != self._device_type or _is_parameter(tensor):
            return tensor
        if isinstance(tensor, DTensor):  # tensor parallel: what this rank holds of it
            mine, layout = self._pack(tensor._local_tensor), (tensor.device_mesh, tensor.placements)
            return _Spread(mine, *layout, tensor.shape, tensor.stride())
        if tensor.nbytes < self._threshold:
            return tensor
        storage = tensor.untyped_storage()
        key = _Key(storage._cdata, int(tensor.storage_offset()), tensor.shape, tensor.stride(), tensor._version)
        known = self._copies.get(key)
        if known is not None and not known[0].expired():  # type: ignore[no-untyped-call]
            return known[1]
        away = _Away(_in_main_memory(tensor), tensor.device)
        # The weak reference keeps the address from being given to another storage.
        self._copies[key] = (StorageWeakRef(storage), away)  # type: ignore[no-untyped-call]
        self.moved_bytes += tensor.nbytes
        return away

    def _unpack(self, packed: Packed) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if isinstance(packed, _Away):
            return packed.copy.to(packed.device, non_blocking=True)
        local = self._unpack(packed.local)
        mesh, placements = packed.mesh, packed.placements
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=packed.shape, stride=packed.stride)


@dataclass(frozen=True, slots=True, eq=False)
class _Away:
    """A tensor that is in main memory for now."""

    copy: Tensor
    device: torch.device


@dataclass(frozen=True, slots=True, eq=False)
class _Spread:
    """A DTensor whose local part may be away."""

    local: Packed
    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]


Packed = Tensor | _Away | _Spread
"""What autograd keeps in place of a saved tensor."""


@dataclass(frozen=True, slots=True)
class _Key:
    """The same numbers: same memory, same view of it, not written to in between."""

    storage: int
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    version: int


def _in_main_memory(tensor: Tensor) -> Tensor:
    """A copy, pinned where there is a GPU, so that the GPU doesn't wait for it."""
    copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type == "cuda")
    return copy.copy_(tensor, non_blocking=True)


def _is_parameter(tensor: Tensor) -> bool:
    """Or a view of one, such as a transposed weight."""
    origin = tensor._base if tensor._is_view() else tensor
    return isinstance(origin, nn.Parameter)


def _worthwhile(device: torch.device, key: str, what: str) -> bool:
    if device.type == "cpu":
        logger.info("%s has nothing to do: on a CPU %s are in main memory already", key, what)
        return False
    return True
