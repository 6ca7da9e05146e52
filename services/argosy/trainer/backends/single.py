"""The one-process backend: float32 master weights on one device, optional bfloat16 compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from argosy.modeling.lean import make_lean, make_native
from argosy.modeling.memory import return_freed_memory
from argosy.modeling.microbatch import plan_micro_batches
from argosy.modeling.native.library import Workspace
from argosy.modeling.packed_model import PackedModel
from argosy.trainer import checkpoint, lora
from argosy.trainer.backends.base import BackendState
from argosy.trainer.backends.building import build_model, prepare_layers
from argosy.trainer.backends.compute import Rows, accumulate
from argosy.trainer.backends.fitting import check_fit
from argosy.trainer.backends.process_state import (
    leave_device,
    memory_metrics,
    restore_rng,
    return_to_device,
    rng_state,
)
from argosy.trainer.checkpoint_saver import CheckpointSaver
from argosy.trainer.lora import BASE_FINGERPRINT, AdapterForm, MergedExport
from argosy.trainer.optimizer import MasterOptimizer, StepOutcome
from argosy.trainer.options import TrainerOptions
from argosy.types.batch import TrajectoryBatch
from argosy.types.records import GlobalNormalizer, LossConfig
from argosy.weightsync.tensors import find_tied


class SingleProcessBackend:
    """Implements `argosy.trainer.backends.base.Backend`."""

    def __init__(self, options: TrainerOptions) -> None:
        self._options = options
        built = build_model(options)
        self._hf_model, self._model, self._compute = built.hf_model, built.packed, built.compute
        self._adapter = built.adapter
        self._workspace = Workspace()
        if not options.compile_layers:  # a compiler fuses in its own way
            make_lean(self._hf_model, self._model.casts)
            if isinstance(self._model, PackedModel):
                self._model.adds_to_gradient = True
            if options.native_kernels and options.compute_dtype == "bfloat16":
                self._use_library()
        prepare_layers(self._hf_model, options, self._model.device)
        self._parameters: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in self._hf_model.named_parameters() if parameter.requires_grad
        }
        self._optimizer = MasterOptimizer(self._parameters, options.optimizer)
        if options.offload.optimizer:
            from argosy.trainer.parallel.offload import offload_optimizer  # brings in torch.distributed

            offload_optimizer(self._optimizer.torch_optimizer, self._model.device)
        self._saver = CheckpointSaver()
        self._settled = False  # whether the optimizer's state has its place in memory

    def _use_library(self) -> None:
        make_native(self._hf_model, self._workspace, add_to_gradient=True)
        if isinstance(self._model, PackedModel):
            self._model.workspace = self._workspace

    @property
    def parameter_count(self) -> int:
        """Trained parameters; tied ones once."""
        return sum(parameter.numel() for parameter in self._parameters.values())

    def forward_backward(
        self, batch: TrajectoryBatch, loss: LossConfig, normalizer: GlobalNormalizer
    ) -> dict[str, float]:
        """Micro-batch by micro-batch."""

        def plan(part: TrajectoryBatch) -> list[tuple[Rows, float]]:
            limit = self._options.update_limit
            rows = plan_micro_batches(part.ragged("prompt_ids"), part.ragged("response_ids"), limit)
            return [(micro_batch, 1.0) for micro_batch in rows]

        self.reserve()
        with self._model.weights_fixed():
            return accumulate(self._compute, batch, loss, normalizer, plan) | self._compute.collected()

    def reserve(self) -> None:
        """Take the memory of gradients and optimizer state now, below that of activations. Repeating does no harm."""
        if not self._options.offload.optimizer:  # else the state is elsewhere between steps
            self._optimizer.reserve()

    def optim_step(self, rate: float) -> StepOutcome:
        """Clip, step, drop the gradients."""
        outcome = self._optimizer.step(rate)
        if not self._settled and not outcome.skipped:
            return_freed_memory()
            self._settled = True
        return outcome

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self._optimizer.zero_grad()

    def evaluate(
        self, batch: TrajectoryBatch, columns: Sequence[str], temperature: float, cancelled: Callable[[], bool]
    ) -> TrajectoryBatch:
        """Columns of the response tokens under the current weights."""
        limit = self._options.log_prob_limit

        def run(columns: Sequence[str]) -> TrajectoryBatch:
            return self._model.evaluate(batch, columns, temperature=temperature, limit=limit, cancelled=cancelled)

        return lora.evaluate(run, self._adapter, columns)

    def offload(self) -> None:
        """Leave the device to others."""
        self._workspace.release()
        leave_device(self._hf_model, self._movable_optimizer(), self._model.device)

    def onload(self) -> None:
        """Take it again."""
        return_to_device(self._hf_model, self._movable_optimizer(), self._model.device)

    def _movable_optimizer(self) -> torch.optim.Optimizer | None:
        """None where its state is moved around each step anyway."""
        return None if self._options.offload.optimizer else self._optimizer.torch_optimizer

    def weights(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """All weights by Hugging Face name, and the tied names: redundant → owner. An adapter is merged."""
        state = self._hf_state()
        merged = state if self._adapter is None else self._adapter.merged(state)
        return merged, find_tied(state)

    @property
    def adapter_form(self) -> AdapterForm | None:
        """Of the LoRA adapter, if one rank and alpha tell it."""
        return None if self._adapter is None else self._adapter.form

    def adapter_weights(self) -> dict[str, Tensor]:
        """The adapter's tensors alone."""
        return {} if self._adapter is None else self._adapter.alone(self._hf_state())

    def base_weights(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """As `weights`, without the adapter."""
        state = self._hf_state()
        return (state if self._adapter is None else self._adapter.base(state)), find_tied(state)

    def _hf_state(self) -> dict[str, Tensor]:
        return {name: tensor.detach() for name, tensor in self._hf_model.state_dict().items()}

    def _own_state(self) -> dict[str, Tensor]:
        """What a checkpoint holds of the model: tied names once; of a model with an adapter, that alone."""
        state = self._hf_state()
        if self._adapter is not None:
            return self._adapter.own(state)
        tied = find_tied(state)
        return {name: tensor for name, tensor in state.items() if name not in tied}

    def state(self) -> BackendState:
        """For a checkpoint."""
        fingerprint = {} if self._adapter is None else {BASE_FINGERPRINT: self._adapter.base_fingerprint}
        return BackendState(
            model=self._own_state(),
            optimizer=self._optimizer.state_tensors(),
            rng=rng_state(self._model.device),
            counters=self._optimizer.counters | fingerprint,
        )

    def load_state(self, state: BackendState) -> None:
        """Restore; names and shapes are checked before the first tensor is touched."""
        own = self._own_state()
        if self._adapter is not None:
            self._adapter.check_base(state.counters)
        check_fit("model", {name: tuple(tensor.shape) for name, tensor in own.items()}, state.model)
        if state.optimizer:
            check_fit("optimizer", self._optimizer.expected_state(), state.optimizer)
        self.zero_grad()
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state.model[name])
        self._optimizer.load_state_tensors(state.optimizer)
        self._optimizer.load_counters(state.counters)
        restore_rng(state.rng, self._model.device)

    def start_save(self, folder: Path, step: int, *, background: bool = True) -> Future[list[str]]:
        """Copy the state now, write it in the background."""
        return self._saver.start(folder, step, self.state(), background=background)

    def load_checkpoint(self, folder: Path) -> int:
        """Read everything, check that it fits, and only then restore."""
        loaded = checkpoint.load(folder)
        self.load_state(loaded.state)
        return loaded.step

    def close(self) -> None:
        """Let a save that is under way finish."""
        self._saver.close()

    def model_for_export(self) -> Any:
        """The transformers model, for `save_pretrained`; with an adapter, what writes both."""
        if self._adapter is None:
            return self._hf_model
        return MergedExport(self._hf_model, self._adapter, self._hf_state())

    def memory_metrics(self) -> dict[str, float]:
        """As `process_state.memory_metrics`."""
        return memory_metrics(self._model.device)
