"""Our part inside vLLM's worker processes, named as `worker_extension_cls` and imported by them.

It follows vLLM's own protocol for reinforcement learning: start_weight_update, update_weights, finish_weight_update on
a `WeightTransferEngine`. Ours takes the tensors from a segment of shared memory (`segment.py`), by their Hugging Face
names; the model's own `load_weights` fuses and shards them as at start. A collective transfer comes before that:
`init_weight_transfer_engine` has the first worker join its group and fill such memory, in a thread. Where a second copy
of the weights can be made (`shadow.py`), it is, and only changes places with the first while nothing runs.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from argosy.rollout.engines.vllm.noise import KeyedSampling
from argosy.rollout.engines.vllm.shadow import Shadow, UnfitError
from argosy.weightsync.collective.receiving import Receipts
from argosy.weightsync.transports.collective import own_device

# In every update they would warn of each layer without weights of its own (a tied head, rotary embeddings), and of each
# tensor that is cast to the engine's dtype. What is really missing, `SegmentTransfer.update_weights` finds.
for _name in ("model_loader.reload.layerwise", "models.utils"):
    logging.getLogger(f"vllm.model_executor.{_name}").setLevel(logging.ERROR)

BACKEND = "argosy-segment"
"""Name of our weight transfer in vLLM's registry."""


@dataclass
class Receive(WeightTransferInitInfo):  # type: ignore[misc]  # vllm has no types here
    """A collective transfer that the first worker is to join; its bytes lie in memory that all of them can map."""

    command: dict[str, Any]
    """See `argosy.weightsync.collective.receiving.receive_into`."""


@dataclass
class SegmentUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Which segment, and what lies where."""

    path: str
    """Opens the segment."""
    size: int
    """Its bytes."""
    tensors: list[tuple[str, str, list[int], int]]
    """(name, dtype, shape, offset in bytes)."""


class SegmentTransfer(WeightTransferEngine):  # type: ignore[misc]
    """Loads a whole model from shared memory, layer by layer, into the tensors that the kernels use."""

    init_info_cls = Receive
    update_info_cls = SegmentUpdate
    supports_draft_weight_update = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Now, while a tied head is the embedding's very parameter, and so counts once.
        self._expected = {name.replace(".base_layer.", ".") for name, _ in self.model.named_parameters()}
        self.receipts = Receipts()

    def init_transfer_engine(self, init_info: Receive) -> None:
        """Begin to receive, and return at once: samples go on meanwhile. One worker's copy is enough on one host."""
        if self.parallel_config.rank == 0:
            self.receipts.begin(init_info.command | {"device": own_device()})

    def start_weight_update(self) -> None:
        """Make ready to load. What an update that failed has left is thrown away."""
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                info.loaded_weights.clear()
                info.load_numel = 0
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load every tensor. Raises if one is unknown to the model or one of the model's is missing."""
        update = self.parse_update_info(update_info)
        loaded = self.model.load_weights(_read(update))
        missing = set() if loaded is None else self._expected - set(loaded)
        if missing:
            raise RuntimeError(f"{len(missing)} parameters got no weights, the first is {min(missing)}")

    def receive_weights(self, update_info: SegmentUpdate) -> None:
        """Part of vLLM's interface; `update_weights` does it."""
        raise NotImplementedError

    def finish_weight_update(self) -> None:
        """Put the new weights under the kernels."""
        finalize_layerwise_reload(self.model, self.model_config)
        _repack_tied_heads(self.model)

    def shutdown(self) -> None:
        """Receive no more."""
        self.receipts.give_up()


def _read(update: SegmentUpdate) -> Iterator[tuple[str, torch.Tensor]]:
    """Views of the segment, one after another."""
    with open(update.path, "rb") as file:
        # A private mapping: torch wants memory that may be written, and nobody else may see it if it is.
        memory = mmap.mmap(file.fileno(), update.size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    for name, dtype, shape, offset in update.tensors:
        kind: torch.dtype = getattr(torch, dtype)
        count = 1
        for extent in shape:
            count *= extent
        yield name, torch.frombuffer(memory, dtype=kind, count=count, offset=offset).reshape(shape)


def _repack_tied_heads(model: torch.nn.Module) -> None:
    """Give a head that shares the embedding's weights a fresh packed copy of them (case D2).

    On CPUs vLLM multiplies by a packed copy that is made when a layer is loaded. A tied head is not loaded by itself,
    so after an update it would go on with the old one.
    """
    embeddings = {
        id(layer.weight)
        for layer in model.modules()
        if isinstance(layer, VocabParallelEmbedding) and not isinstance(layer, ParallelLMHead)
    }
    for layer in model.modules():
        if isinstance(layer, ParallelLMHead) and hasattr(layer, "cpu_linear") and id(layer.weight) in embeddings:
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)


class WorkerExtension:
    """Methods that vLLM adds to its worker, for `collective_rpc`. Their names must not be any of the worker's own."""

    model_runner: Any
    vllm_config: Any
    weight_transfer_engine: Any
    _argosy_shadow: Shadow | str | None = None
    """None: not made yet. A text: why there can't be one."""
    _argosy_sizes: list[tuple[torch.UntypedStorage, int]] = []  # noqa: RUF012 - vLLM makes no instance of this class

    def argosy_key_noise(self) -> bool:
        """Draw with our noise from now on; False where this worker's sampler is not one that it fits."""
        return KeyedSampling.install(self.model_runner)

    def argosy_received(self) -> dict[str, Any] | None:
        """What `Receipts.answer` says of the transfer that was begun last; None in workers that take no part."""
        transfer: SegmentTransfer = self.weight_transfer_engine
        return transfer.receipts.answer()

    def argosy_stop_receiving(self) -> None:
        """Give a transfer up."""
        self.weight_transfer_engine.receipts.give_up()

    def argosy_forget_update(self) -> None:
        """Let a new update start where the last one was broken off."""
        self._weight_update_active = False

    def argosy_prepare(self, update_info: dict[str, Any]) -> str:
        """Start to make new weights ready beside those in use; "", or why that can't be."""
        try:
            if self._argosy_shadow is None:
                self._argosy_shadow = Shadow(self.model_runner.get_model(), self.vllm_config)
            if isinstance(self._argosy_shadow, str):
                return self._argosy_shadow
            self._argosy_shadow.begin(_read(SegmentUpdate(**update_info)))
        except UnfitError as error:
            if self._argosy_shadow is None:
                self._argosy_shadow = str(error)
            return str(error)
        return ""

    def argosy_advance(self, seconds: float) -> bool:
        """Go on with that for a while; whether all is ready."""
        return self._argosy_made().advance(seconds)

    def argosy_swap_in(self) -> None:
        """Put what is ready in use. Nothing may run."""
        self._argosy_made().swap_in()
        self.model_runner.reset_lora_state()

    def argosy_drop_replaced(self) -> None:
        """Give back the memory of all weights that are not in use."""
        if isinstance(self._argosy_shadow, Shadow):
            self._argosy_shadow.drop()

    def _argosy_made(self) -> Shadow:
        if not isinstance(self._argosy_shadow, Shadow):
            raise TypeError("no new weights are being made ready")
        return self._argosy_shadow

    def argosy_release_cache(self) -> None:
        """Free the memory of keys and values (CPUs, where vLLM has no sleep). Nothing may run until it is back."""
        for storage in self._argosy_storages():
            # Several layers may lie in one storage; each has to know its own size only once.
            self._argosy_sizes.append((storage, storage.nbytes()))
            storage.resize_(0)

    def argosy_restore_cache(self) -> None:
        """Take it again. What was in it is gone."""
        while self._argosy_sizes:
            storage, size = self._argosy_sizes.pop()
            storage.resize_(size)
            torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).zero_()

    def _argosy_storages(self) -> list[torch.UntypedStorage]:
        found: dict[int, torch.UntypedStorage] = {}
        for entry in self.model_runner.kv_caches:
            for tensor in entry if isinstance(entry, (list, tuple)) else [entry]:
                storage = tensor.untyped_storage()
                found[storage.data_ptr()] = storage
        return list(found.values())


if BACKEND not in WeightTransferEngineFactory._registry:  # vLLM refuses to register a name twice
    WeightTransferEngineFactory.register_engine(BACKEND, SegmentTransfer)
