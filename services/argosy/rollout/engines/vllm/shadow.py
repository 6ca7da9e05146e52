"""New weights made ready beside those in use, so that samples wait only while pointers change.

On CPUs vLLM multiplies by packed copies of its matrices, and its own reload makes them in place, for which nothing may
run. A `Shadow` is the model's modules once more, without memory between two updates: new tensors are loaded and packed
there in small pieces, between the steps of samples, and then change places with the old ones at once.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import materialize_meta_tensor
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype

_LOAD_BYTES = 32 << 20
"""Of one call of the model's own loader, which looks at every parameter of the model each time."""
_ROOM = 1.25
"""Times the model's size: so much memory must be free for a second copy of it."""
_PACKED = "cpu_linear"
"""Attribute of a layer: the function that multiplies by its packed matrix."""


class UnfitError(Exception):
    """Why a model's weights can't be made ready beside it."""


class Shadow:
    """A second set of a model's modules, for its next weights.

    Args:
        live: The model in use; it may have vLLM's LoRA around its layers.
        config: vLLM's of it.

    Raises:
        UnfitError: it has weights that are not simply loaded and packed, layer by layer.
    """

    def __init__(self, live: nn.Module, config: Any) -> None:
        if not config.model_config.enforce_eager or config.device_config.device_type != "cpu":
            raise UnfitError("only on CPUs, and only where nothing is compiled")
        self._config = config
        self._live = live
        self._model: Any = _empty_model(config)
        # A layer with LoRA around it is its "base_layer", which comes after the one around it.
        modules = {name.replace(".base_layer", ""): module for name, module in live.named_modules()}
        self._pairs: list[tuple[Any, Any]] = []
        """(ours, the one in use) of every module that has parameters."""
        for name, ours in self._model.named_modules():
            _check_fit(name, ours, modules.get(name))
            if ours._parameters:
                self._pairs.append((ours, modules[name]))
        self._blank = [(ours, dict(ours._parameters)) for ours, _ in self._pairs]
        _check_ties(self._pairs, live)
        self._names = {name for name, _ in self._model.named_parameters()}
        self._work: Iterator[None] = iter(())
        self._ready = False
        self._replaced: list[object] = []

    def begin(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Start to make these ready, in place of any that were not taken into use.

        Raises:
            UnfitError: there is too little memory for a second copy of the model, or nothing whole in use: vLLM's own
                reload was broken off, and has to come first.
        """
        self.drop()
        if any(get_layerwise_info(module).can_load() for module in self._live.modules()):
            raise UnfitError("the last update was broken off within vLLM's own reload")
        size = sum(one.nbytes for one in self._model.parameters())
        free = psutil.virtual_memory().available
        if free < _ROOM * size:
            raise UnfitError(f"{free >> 20} MiB of memory are free, and a second copy of the model takes {size >> 20}")
        self._work = self._pieces(list(tensors))

    def advance(self, seconds: float) -> bool:
        """Go on for about as long (a piece is not divided); whether all is ready."""
        until = time.perf_counter() + seconds
        with torch.no_grad(), set_current_vllm_config(self._config):
            for _ in self._work:
                if time.perf_counter() >= until:
                    return False
        if not self._ready:
            raise RuntimeError("no new weights are being made ready")
        return True

    def swap_in(self) -> None:
        """Put what is ready in use, all of it or (RuntimeError) nothing. Nothing may run meanwhile.

        The parameters themselves stay, so that whoever holds one has the new values too; old ones wait for `free`.
        """
        if not self._ready:
            raise RuntimeError("no new weights are ready")
        for ours, live in self._pairs:
            _check_same(ours, live)
        for ours, live in self._pairs:
            for name, new in ours._parameters.items():
                if new is not None:
                    self._replaced.append(live._parameters[name].data)
                    live._parameters[name].data = new.data
            if _PACKED in vars(ours):
                self._replaced.append(vars(live)[_PACKED])
                setattr(live, _PACKED, vars(ours)[_PACKED])
        self._clear()

    def free(self) -> None:
        """Give back the memory of what `swap_in` has replaced."""
        self._replaced.clear()

    def drop(self) -> None:
        """Give back the memory of everything that is not in use."""
        self._clear()
        self.free()

    def _clear(self) -> None:
        self._work, self._ready = iter(()), False
        for ours, blank in self._blank:
            vars(ours).pop(_PACKED, None)
            for name, parameter in blank.items():
                ours._parameters[name] = parameter

    def _pieces(self, tensors: list[tuple[str, Tensor]]) -> Iterator[None]:
        """One piece of the work at each step."""
        made: dict[int, Tensor] = {}
        for ours, blank in self._blank:
            for name, parameter in blank.items():
                if parameter is not None:  # a tied one is the same on both sides, and stays so
                    made.setdefault(id(parameter), materialize_meta_tensor(parameter))
                    ours._parameters[name] = made[id(parameter)]
        missing = set(self._names)
        for some in _batches(tensors):
            loaded = self._model.load_weights(iter(some))
            missing -= self._names if loaded is None else set(loaded)  # None: this model doesn't tell
            yield
        if missing:
            raise RuntimeError(f"{len(missing)} parameters got no weights, the first is {min(missing)}")
        tied = self._tied_embeddings()
        for ours, _ in self._pairs:
            if isinstance(getattr(ours, "quant_method", None), QuantizeMethodBase) and id(ours) not in tied:
                ours.quant_method.process_weights_after_loading(ours)
                yield
        for ours, _ in self._pairs:
            if id(ours) in tied:  # nothing multiplies by it: its head's copy is kept rather than one of its own
                setattr(ours, _PACKED, vars(tied[id(ours)])[_PACKED])
        self._ready = True

    def _tied_embeddings(self) -> dict[int, nn.Module]:
        """id of each embedding that shares its weights with a head → the head."""
        heads = {id(ours.weight): ours for ours, _ in self._pairs if isinstance(ours, ParallelLMHead)}
        return {
            id(ours): heads[id(ours.weight)]
            for ours, _ in self._pairs
            if isinstance(ours, VocabParallelEmbedding)
            and not isinstance(ours, ParallelLMHead)
            and id(ours.weight) in heads
        }


def _empty_model(config: Any) -> nn.Module:
    """The model's modules on the meta device, known to nobody else."""
    config = copy.copy(config)
    config.compilation_config = copy.copy(config.compilation_config)
    # Attention layers put themselves there by name, and refuse a name that is taken.
    config.compilation_config.static_forward_context = {}
    config.compilation_config.static_all_moe_layers = []
    try:
        with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"):
            model: nn.Module = initialize_model(vllm_config=config)
    except Exception as error:  # whatever a model does that can't be done without memory
        raise UnfitError(f"its modules can't be made without memory: {error}") from error
    return model


def _check_fit(name: str, ours: nn.Module, live: nn.Module | None) -> None:
    """Raise UnfitError unless loading and packing a module's own parameters is all that is done to it."""
    what = f"{name or 'the model'} ({type(ours).__name__})"
    parameters = {key: one for key, one in ours._parameters.items() if one is not None}
    if live is None or parameters.keys() != {key for key, one in live._parameters.items() if one is not None}:
        raise UnfitError(f"{what} is not in the model in use, or has other parameters")
    method = getattr(ours, "quant_method", None)
    known = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
    if isinstance(method, QuantizeMethodBase) and type(method) not in known:
        raise UnfitError(f"{what} is quantized, or of experts")
    if any(one.ndim > 2 for one in parameters.values()):
        raise UnfitError(f"{what} is no matrix")
    if is_deferred_attention_layer(ours):
        if type(ours).__name__ != "Attention" or parameters:
            raise UnfitError(f"{what} keeps something made of weights")
    elif callable(getattr(ours, "process_weights_after_loading", None)):
        raise UnfitError(f"{what} keeps something made of weights")
    elif ours is not live and ours._buffers.keys() - ours._non_persistent_buffers_set:
        raise UnfitError(f"{what} has buffers that are loaded")


def _check_ties(pairs: list[tuple[Any, Any]], live: nn.Module) -> None:
    """Raise UnfitError unless the same parameters are shared on both sides, and by nothing else."""
    found: dict[int, int] = {}
    back: dict[int, int] = {}
    for ours, theirs in pairs:
        for name, parameter in ours._parameters.items():
            if parameter is not None:
                here, there = id(parameter), id(theirs._parameters[name])
                if found.setdefault(here, there) != there or back.setdefault(there, here) != here:
                    raise UnfitError(f"{name} of a {type(theirs).__name__} is shared otherwise in the model in use")
    storages = {one.untyped_storage().data_ptr() for one in live.parameters()} - {0}
    if any(one.untyped_storage().data_ptr() in storages for one in live.buffers()):
        raise UnfitError("a buffer lies in the memory of a parameter")


def _check_same(ours: nn.Module, live: nn.Module) -> None:
    """Raise RuntimeError unless what a module has made of its weights looks like what the one in use has."""
    what = f"a {type(live).__name__}"
    for name, new in ours._parameters.items():
        old = live._parameters.get(name)
        if new is None or old is None:
            if new is not old:
                raise RuntimeError(f"{what} has parameter {name} on one side only")
        elif (new.shape, new.dtype, new.device) != (old.shape, old.dtype, old.device):
            raise RuntimeError(f"{what} has its parameter {name} in another shape, dtype or place")
    if (_PACKED in vars(ours)) != (_PACKED in vars(live)):
        raise RuntimeError(f"{what} is packed on one side only")


def _batches(tensors: list[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    some: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in tensors:
        if some and size + tensor.nbytes > _LOAD_BYTES:
            yield some
            some, size = [], 0
        some.append((name, tensor))
        size += tensor.nbytes
    if some:
        yield some
